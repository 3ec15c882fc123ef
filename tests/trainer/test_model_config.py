from __future__ import annotations

from typing import Any

import pytest

from pipeline.config import from_table
from pipeline.errors import ConfigError
from trainer.settings.model import ModelConfig


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (
            ModelConfig,
            {"hidden_size": 100},
            "model.hidden_size = 100: must be a multiple of model.num_attention_heads = 12",
        ),
        (ModelConfig, {"num_hidden_layers": 0}, "model.num_hidden_layers = 0: must be in"),
        (
            ModelConfig,
            {"max_position_embeddings": 1 << 30},
            r"max_position_embeddings = 1073741824",
        ),
        (ModelConfig, {"hidden_dropout_prob": 1.0}, "model.hidden_dropout_prob = 1.0"),
        (ModelConfig, {"embedding_dropout_prob": 1.5}, "model.embedding_dropout_prob = 1.5"),
        (ModelConfig, {"layer_norm_eps": 0.0}, "model.layer_norm_eps = 0.0"),
    ],
)
def test_value_out_of_range_is_refused_by_name(
    config: type[Any], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**values)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"hiden_size": 128}, "hiden_size: unknown key"),
        ({"hidden_size": "128"}, "hidden_size"),
    ],
)
def test_toml_table_with_a_wrong_key_is_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_table(ModelConfig, table, "run.toml")
