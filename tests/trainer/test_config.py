"""Which set of instances a run is trained on, and that the model has positions for it."""

from __future__ import annotations

import json

import pytest

from pipeline.config import InstancesConfig
from pipeline.contract import canonical_json
from pipeline.errors import ConfigError
from tests.trainer.recipes import RUNS
from trainer.config import TrainerConfig, load, training_identity
from trainer.settings.model import ModelConfig
from trainer.settings.training import TrainingConfig


def config(lengths: int | tuple[int, ...], trained: int, positions: int = 512) -> TrainerConfig:
    return TrainerConfig(
        instances=InstancesConfig(max_seq_length=lengths),
        model=ModelConfig(max_position_embeddings=positions),
        training=TrainingConfig(max_seq_length=trained),
    )


@pytest.mark.parametrize(
    ("lengths", "trained", "length"),
    [(128, 0, 128), (128, 128, 128), ((128, 512), 128, 128), ((128, 512), 512, 512)],
)
def test_one_set_needs_no_name_and_of_several_one_is_named(
    lengths: int | tuple[int, ...], trained: int, length: int
) -> None:
    assert config(lengths, trained).trained_length == length


@pytest.mark.parametrize(
    ("lengths", "trained", "message"),
    [
        ((128, 512), 0, r"training.max_seq_length = 0: must be one of .* = \[128, 512\]"),
        ((128, 512), 256, r"training.max_seq_length = 256: must be one of"),
        (128, 512, r"training.max_seq_length = 512: must be one of .* = \[128\]"),
    ],
)
def test_a_set_that_is_not_there_is_refused(
    lengths: int | tuple[int, ...], trained: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config(lengths, trained)


def test_only_the_trained_set_needs_positions() -> None:
    assert config((128, 512), 128, positions=128).trained_length == 128
    with pytest.raises(ConfigError, match=r"leaves positions for 128 tokens, an instance has 512"):
        config((128, 512), 512, positions=128)


@pytest.mark.parametrize("name", [path.stem for path in sorted(RUNS.glob("*.toml"))])
def test_the_identity_of_every_recipes_training_can_be_written(name: str) -> None:
    """RoBERTa's clip_norm is inf, which JSON has no number for."""
    identity = training_identity(load(str(RUNS / f"{name}.toml")))
    assert json.loads(canonical_json(identity)) == identity
    assert identity["optimizer"]["clip_norm"] == ("inf" if name == "roberta" else 1.0)
