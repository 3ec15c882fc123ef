from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from rich.console import Console

from pipeline import config as data_config
from pipeline.errors import ConfigError
from pipeline.presets import FOLDER, preset_names
from trainer.__main__ import main
from trainer.parameter_table import load_preset, parameter_counts, parameter_table

BERT = transformers.BertConfig, transformers.BertForPreTraining
ROBERTA = transformers.RobertaConfig, transformers.RobertaForMaskedLM
ALBERT = transformers.AlbertConfig, transformers.AlbertForPreTraining
MODERN = transformers.ModernBertConfig, transformers.ModernBertForMaskedLM

# The published config.json of each model; what is not there is the class's default.
ROBERTA_BASE = {
    "vocab_size": 50265,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "layer_norm_eps": 1e-5,
}
ALBERT_SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
PUBLISHED: dict[str, tuple[Any, dict[str, Any]]] = {
    "bert-tiny": (BERT, dict(zip(ALBERT_SHAPE, (128, 2, 2, 512), strict=True))),
    "bert-mini": (BERT, dict(zip(ALBERT_SHAPE, (256, 4, 4, 1024), strict=True))),
    "bert-small": (BERT, dict(zip(ALBERT_SHAPE, (512, 4, 8, 2048), strict=True))),
    "bert-medium": (BERT, dict(zip(ALBERT_SHAPE, (512, 8, 8, 2048), strict=True))),
    "bert-base": (BERT, {}),
    "bert-large": (BERT, dict(zip(ALBERT_SHAPE, (1024, 24, 16, 4096), strict=True))),
    "bert-base-wwm": (BERT, {}),
    "bert-large-wwm": (BERT, dict(zip(ALBERT_SHAPE, (1024, 24, 16, 4096), strict=True))),
    "bert-base-multilingual": (BERT, {"vocab_size": 119547}),
    "bert-base-multilingual-uncased": (BERT, {"vocab_size": 105879}),
    "bert-base-chinese": (BERT, {"vocab_size": 21128}),
    "bert-base-chinese-wwm": (BERT, {"vocab_size": 21128}),
    "roberta-base": (ROBERTA, ROBERTA_BASE),
    "roberta-large": (
        ROBERTA,
        {**ROBERTA_BASE, **dict(zip(ALBERT_SHAPE, (1024, 24, 16, 4096), strict=True))},
    ),
    "albert-base": (ALBERT, dict(zip(ALBERT_SHAPE, (768, 12, 12, 3072), strict=True))),
    "albert-large": (ALBERT, dict(zip(ALBERT_SHAPE, (1024, 24, 16, 4096), strict=True))),
    "albert-xlarge": (ALBERT, dict(zip(ALBERT_SHAPE, (2048, 24, 16, 8192), strict=True))),
    "albert-xxlarge": (ALBERT, dict(zip(ALBERT_SHAPE, (4096, 12, 64, 16384), strict=True))),
    "modern-base": (MODERN, {}),
    "modern-large": (MODERN, dict(zip(ALBERT_SHAPE, (1024, 28, 16, 2624), strict=True))),
}


def test_every_preset_has_its_published_model() -> None:
    assert preset_names() == sorted(PUBLISHED)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameter_counts_are_those_of_the_hugging_face_twin(name: str) -> None:
    (config_class, model_class), published = PUBLISHED[name]
    with torch.device("meta"):
        twin = model_class(config_class(**published))
    expected = sum(parameter.numel() for parameter in twin.parameters())
    assert sum(parameter_counts(load_preset(name)).values()) == expected


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_settings_that_no_count_shows_are_the_published_ones(name: str) -> None:
    (config_class, _), published = PUBLISHED[name]
    twin, model = config_class(**published), load_preset(name).model
    assert model.num_attention_heads == twin.num_attention_heads
    assert model.max_position_embeddings == twin.max_position_embeddings
    if config_class is transformers.ModernBertConfig:
        assert (model.hidden_act, model.layer_norm_eps) == (twin.hidden_activation, twin.norm_eps)
        assert model.local_attention_window == twin.local_attention
        layers = range(twin.num_hidden_layers)
        assert [model.is_global(layer) for layer in layers] == [
            kind == "full_attention" for kind in twin.layer_types
        ]
    else:
        assert (model.hidden_act, model.layer_norm_eps) == (twin.hidden_act, twin.layer_norm_eps)
    dropouts = (
        (twin.mlp_dropout, twin.attention_dropout, twin.embedding_dropout)
        if config_class is transformers.ModernBertConfig
        else (twin.hidden_dropout_prob, twin.attention_probs_dropout_prob, twin.hidden_dropout_prob)
    )
    assert (
        model.hidden_dropout_prob,
        model.attention_probs_dropout_prob,
        model.embedding_dropout,
    ) == dropouts


# Devlin et al. 2019, 3; Lan et al. 2020, table 1; Turc et al. 2019, table 1; Liu et al. 2019, 5.
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("bert-tiny", 4.4),
        ("bert-base", 110),
        ("bert-large", 340),
        ("roberta-base", 125),
        ("roberta-large", 355),
        ("albert-base", 12),
        ("albert-large", 18),
        ("albert-xlarge", 60),
        ("albert-xxlarge", 235),
        ("modern-base", 149),
        ("modern-large", 395),
    ],
)
def test_parameter_counts_are_about_those_of_the_papers(name: str, millions: float) -> None:
    counts = parameter_counts(load_preset(name))
    assert sum(counts.values()) / 1e6 == pytest.approx(millions, rel=0.06)


def test_params_prints_a_row_for_each_module_and_the_total(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["params", "bert-base"]) == 0
    printed = capsys.readouterr().out
    # 12 layers of 2 (4 H^2 + 4 H) + 4 H ... by hand: 12 x (4 (768^2 + 768) + 2 x 768).
    assert f"{12 * (4 * (768**2 + 768) + 2 * 768):,}" in printed
    assert "23,440,896" in printed  # 30,522 x 768
    assert "110,106,428" in printed  # sum of BertForPreTraining


def test_the_table_of_a_toml_file_is_of_its_own_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('preset = "bert-tiny"\n[vocabulary]\nvocab_size = 100\npad_to_multiple_of = 64')
    console = Console(record=True, width=80)
    console.print(parameter_table(str(path)))
    assert f"{128 * 128:,}" in console.export_text()


def test_a_run_lays_its_own_keys_over_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('preset = "bert-large-wwm"\nseed = 3\n[model]\nhidden_dropout_prob = 0.0')
    settings = load_preset(str(path))
    assert (settings.seed, settings.model.hidden_dropout_prob) == (3, 0.0)
    assert (settings.model.hidden_size, settings.model.num_hidden_layers) == (1024, 24)
    assert settings.masking.unit == "whole_word"
    assert data_config.load(str(path)).masking.unit == "whole_word"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('preset = "bert-huge"', "preset = 'bert-huge': must be one of albert-base, "),
        ("preset = 3", "preset = 3: must be one of"),
        ('preset = "../runs/demo"', "must be one of"),
        ('preset = "bert-base"\n[model]\nhiden_size = 1', "hiden_size: unknown key"),
        ('preset = "bert-base"\nmodel = 1', "model = 1"),
    ],
)
def test_a_wrong_preset_or_key_over_it_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_preset(str(path))


@pytest.mark.parametrize("name", ["README.md", "deploy", "../models/bert-base", ""])
def test_params_says_what_it_takes(name: str) -> None:
    with pytest.raises(ConfigError, match=r"name ends in \.toml, or a preset: albert-base, "):
        main(["params", name])


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"bert-basic: must be .* a preset: .*bert-base, "):
        load_preset("bert-basic")


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_whole_word_presets_are_so_by_their_masking(name: str) -> None:
    settings = load_preset(name)
    assert ("wwm" in name) == (settings.masking.unit == "whole_word")
    assert (FOLDER / f"{name}.toml").read_text().startswith("#")
