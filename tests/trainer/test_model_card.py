from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import safetensors.torch

from tests.trainer.batches import TINY, make_model
from tests.trainer.test_export_folder import ALBERT, MODERN, ROBERTA
from tests.trainer.wordpiece import make_source
from trainer.convert import export_folder
from trainer.convert.model_card import model_card
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.settings.model import ModelConfig

TRAINING: dict[str, Any] = {
    "evaluation": {
        "by_source": {"books": {"mlm_loss_nats": 3.5}},
        "mlm_accuracy": 0.314,
        "mlm_loss_nats": 4.25,
        "mlm_perplexity": 70.1,
        "pair_accuracy": 0.625,
    },
    "identity": {"masking": {"probability": 0.15}},
    "sequences_seen": 9_000,
    "steps": 30,
    "tokens_seen": 70_000,
    "unigram_entropy_nats": 5.5,
}


def instances(objective: str) -> dict[str, Any]:
    counts = {"documents": 7, "instances": 40, "tokens": 5_120}
    card = {"fill": 0.93, "unknown_rate": 0.001}
    return {
        "counts": {"train": counts, "held_out": {"instances": 2}},
        "data_card": {"train": card, "held_out": {"fill": 0.5}},
        "masking": {"mode": "dynamic"},
        "objective": objective,
    }


def card_of(model: EncoderForPreTraining, objective: str, **training: Any) -> str:
    return model_card(
        model, make_source(), training=TRAINING | training, instances=instances(objective)
    ).decode()


def rows_of(model: EncoderForPreTraining, objective: str, **training: Any) -> dict[str, str]:
    """Every table's rows: first cell -> the others."""
    card = card_of(model, objective, **training)
    assert card.startswith("---\nlibrary_name: transformers\n")
    cells = [line[2:-2].split(" | ") for line in card.split("\n") if line.startswith("| ")]
    return {first: " | ".join(rest) for first, *rest in cells}


@pytest.mark.parametrize(
    ("objective", "meaning"),
    [
        ("nsp", "0: B follows A, 1: B is random"),
        ("sop", "0: B follows A, 1: A follows B"),
    ],
)
def test_the_card_lists_the_heads_of_each_class(objective: str, meaning: str) -> None:
    rows = rows_of(make_model(), objective)
    assert rows["`BertForPreTraining`"] == f"masked language model, pairs ({meaning})"
    assert rows["`BertForMaskedLM`"] == "masked language model"
    assert rows["`BertModel`"] == "pooler"


def test_a_class_whose_heads_the_model_has_not_is_left_out() -> None:
    without = {"evaluation": {**TRAINING["evaluation"], "pair_accuracy": None}}
    rows = rows_of(make_model(pair_head=None), "full_sentences", **without)
    assert "`BertForPreTraining`" not in rows
    assert rows["`BertModel`"] == "none: hidden states; its pooler is not trained"
    assert "held-out pair accuracy" not in rows
    modern = rows_of(make_model(MODERN, pair_head=None), "full_sentences", **without)
    assert modern["`ModernBertModel`"] == "none: hidden states"
    for config, names in (
        (ROBERTA, {"`RobertaForMaskedLM`", "`RobertaModel`"}),
        (ALBERT, {"`AlbertForMaskedLM`", "`AlbertModel`"}),
        (MODERN, {"`ModernBertForMaskedLM`", "`ModernBertModel`"}),
    ):
        found = rows_of(make_model(config, pair_head=None), "full_sentences", **without)
        assert {name for name in found if name.endswith(("Model`", "LM`", "Training`"))} == names


def test_the_card_has_the_tokenizer_the_run_and_the_data() -> None:
    rows = rows_of(make_model(), "nsp")
    assert rows["class"] == "`BertTokenizer`"
    assert rows["case"] == "lower-cased"
    assert rows["longest sequence"] == "80 tokens"
    assert rows["`token_type_ids`"] == "0 and 1"
    assert rows["steps"] == "30"
    assert rows["masking"] == '`{"probability": 0.15}`'
    assert rows["held-out masked-LM loss"] == "4.2500 nats"
    assert rows["held-out pair accuracy"] == "0.6250"
    assert rows["tokens"] == "5,120 | 0"
    assert rows["fill"] == "0.93 | 0.5"
    assert rows["unknown_rate"] == "0.001 | "


@pytest.mark.parametrize(
    "config",
    [
        dataclasses.replace(TINY, pad_vocab_size_to_multiple_of=64),
        dataclasses.replace(ALBERT, pad_vocab_size_to_multiple_of=64),
        dataclasses.replace(ALBERT, parameter_sharing="attention"),
        MODERN,
    ],
    ids=lambda config: f"{config.architecture}-{config.parameter_sharing}",
)
def test_the_card_counts_the_weights_of_the_exported_file(config: ModelConfig) -> None:
    model = make_model(config, pair_head=None)
    weights = safetensors.torch.load(export_folder(model, make_source())["model.safetensors"])
    exported = sum(tensor.numel() for tensor in weights.values())
    assert f" heads, {exported:,} parameters, pre-trained" in card_of(model, "sentence")


def test_positions_behind_the_padding_token_are_told() -> None:
    rows = rows_of(make_model(ROBERTA, pair_head=None), "sentence")
    assert rows["position table"] == "81 rows; the first token has row 1"
    assert rows["`[PAD]`"] == "id 0"
    assert rows["class"] == "`PreTrainedTokenizerFast`"
    assert rows["`token_type_ids`"] == "not read"
    assert "position table" not in rows_of(make_model(dataclasses.replace(TINY)), "nsp")
