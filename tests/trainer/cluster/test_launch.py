from __future__ import annotations

from typing import Any

import pytest

from trainer.cluster.launch import too_few_gpus
from trainer.settings.training import TrainingConfig


@pytest.mark.parametrize(
    ("training", "gpus", "named"),
    [
        ({"workers": 4}, 3, "training.workers = 4 and the cluster has GPUs for 3; lower"),
        ({"workers": 8, "min_workers": 4}, 1, "training.min_workers = 4 and the cluster has"),
    ],
)
def test_gpus_that_are_left_idle_since_they_are_too_few_are_told(
    training: dict[str, Any], gpus: int, named: str
) -> None:
    said = too_few_gpus(TrainingConfig(**training), gpus)
    assert said.startswith('training.device = "auto": trains on the CPU') and named in said


@pytest.mark.parametrize(
    ("training", "gpus"),
    [
        ({"workers": 4}, 0),
        ({"workers": 4}, 4),
        ({"workers": 8, "min_workers": 2}, 2),
        ({"workers": 4, "device": "cpu"}, 3),
        ({"workers": 4, "device": "cuda"}, 3),
    ],
)
def test_nothing_is_said_where_the_device_is_what_was_asked_for(
    training: dict[str, Any], gpus: int
) -> None:
    assert too_few_gpus(TrainingConfig(**training), gpus) == ""
