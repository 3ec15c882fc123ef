from __future__ import annotations

import tomllib
from typing import Any

import pytest

from pipeline.config import from_table
from pipeline.errors import ConfigError
from trainer.settings.optimizer import OptimizerConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": 0.0}, "optimizer.learning_rate = 0.0"),
        ({"learning_rate": float("nan")}, "optimizer.learning_rate = nan"),
        ({"betas": (0.9, 1.0)}, r"optimizer.betas = \[0.9, 1.0\]"),
        ({"weight_decay": -0.1}, "optimizer.weight_decay = -0.1"),
        ({"clip_norm": 0.0}, "optimizer.clip_norm = 0.0"),
    ],
)
def test_value_out_of_range_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**values)


@pytest.mark.parametrize("value", ["0", "0.0", "-1e-4", "nan", "inf"])
def test_learning_rate_that_teaches_nothing_is_refused_in_toml(value: str) -> None:
    with pytest.raises(
        ConfigError, match=r"optimizer\.learning_rate = .*: must be a finite number"
    ):
        from_table(OptimizerConfig, tomllib.loads(f"learning_rate = {value}"), "run.toml")


def test_toml_table_sets_the_fields() -> None:
    config = from_table(OptimizerConfig, {"betas": [0.9, 0.98], "learning_rate": 1}, "run.toml")
    assert (config.betas, config.learning_rate) == ((0.9, 0.98), 1.0)
