"""A training whose data have one bad batch, where all else can be learned by heart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.instance_set import InstanceSet
from tests.trainer.small_training import commit_sets, make_rows, small_config
from trainer.config import TrainerConfig

ROWS, BATCH = 240, 8
STEPS = 28
# Record batch 23 of 30, which is one step, is noise where all else can be learned by heart.
NOISE = range(23 * BATCH, 24 * BATCH)


def instances_at(root: Path, noise: Sequence[int] = NOISE) -> InstanceSet:
    return commit_sets(
        root,
        {
            32: {
                "train": make_rows(ROWS, 32, pairs=False, noise=noise),
                "held_out": make_rows(16, 32, seed=1, pairs=False),
            }
        },
        objective="sentence",
        rows_per_batch=BATCH,
    )


def config_at(root: Path, **tables: Any) -> TrainerConfig:
    """A step reads one record batch, so that a bad one is a bad step."""
    merged: dict[str, Any] = {
        "instances": {"max_seq_length": 32, "objective": "sentence"},
        "model": {"hidden_size": 32},
        "optimizer": {"learning_rate": 0.05},
        "schedule": {"decay": "constant"},
        "masking": {"probability": 0.5, "mask_share": 0.0, "random_share": 0.0},
        "training": {"total_steps": STEPS, "lanes": 1, "window_batches": 1},
        "divergence": {"window_steps": 5, "margin_nats": 1.0, "deviations": 6.0},
    }
    for name, table in tables.items():
        merged[name] = {**merged.get(name, {}), **table}
    return small_config(root, **merged)
