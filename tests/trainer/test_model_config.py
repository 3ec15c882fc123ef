from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.config import from_table
from pipeline.errors import ConfigError
from trainer.parameter_table import load_preset
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


@pytest.mark.parametrize("preset", ["bert-tiny", "roberta-base", "albert-base"])
def test_a_dropout_of_the_embeddings_alone_is_refused_where_config_json_cannot_say_it(
    preset: str,
) -> None:
    model = load_preset(preset).model
    hidden = model.hidden_dropout_prob
    assert replace(model, embedding_dropout_prob=hidden).embedding_dropout == hidden
    with pytest.raises(ConfigError, match=r"model\.embedding_dropout_prob = 0\.3: .* has one dro"):
        replace(model, embedding_dropout_prob=0.3)
    assert replace(model, architecture="custom", embedding_dropout_prob=0.3)


@pytest.mark.parametrize("name", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropouts_that_modernbert_has_in_other_places_are_refused(name: str) -> None:
    model = load_preset("modern-base").model
    assert replace(model, embedding_dropout_prob=0.1).embedding_dropout == 0.1
    change: dict[str, Any] = {name: 0.1}
    with pytest.raises(ConfigError, match=rf'model\.{name} = 0\.1: .* = "modern" has 0\.0;'):
        replace(model, **change)
