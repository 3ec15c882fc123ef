"""BERT (Devlin et al. 2019): BertModel, BertForMaskedLM, BertForPreTraining of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.convert.config_json import ConfigJson
from trainer.convert.family import Family, SpecialIds, modules
from trainer.convert.names import Heads, Pair
from trainer.settings.model import ModelConfig

_EMBEDDINGS = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.token_type_embeddings": "embeddings.token_type_embeddings",
    "embeddings.layer_norm": "embeddings.LayerNorm",
}
_LAYER = {
    "encoder.attention.{i}.output": "encoder.layer.{i}.attention.output.dense",
    "encoder.attention.{i}.layer_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "encoder.feed_forward.{i}.intermediate": "encoder.layer.{i}.intermediate.dense",
    "encoder.feed_forward.{i}.output": "encoder.layer.{i}.output.dense",
    "encoder.feed_forward.{i}.layer_norm": "encoder.layer.{i}.output.LayerNorm",
}
_QKV = "encoder.layer.{i}.attention.self."


def encoder_pairs(config: ModelConfig, base: str) -> Iterator[Pair]:
    """Yield the tensors of embeddings and layers, as BERT and RoBERTa name them."""
    yield from modules({ours: base + theirs for ours, theirs in _EMBEDDINGS.items()})
    for i in range(config.num_hidden_layers):
        yield from modules(
            {ours.format(i=i): base + theirs.format(i=i) for ours, theirs in _LAYER.items()}
        )
        for kind in ("weight", "bias"):
            parts = (f"{base}{_QKV.format(i=i)}{part}.{kind}" for part in ("query", "key", "value"))
            yield Pair(ours=f"encoder.attention.{i}.qkv.{kind}", theirs=tuple(parts))


def _pairs(config: ModelConfig, heads: Heads, base: str) -> Iterator[Pair]:
    yield from encoder_pairs(config, base)
    if heads.pooler:
        yield from modules({"pooler.dense": f"{base}pooler.dense"})
    if heads.masked_lm:
        yield from modules(
            {
                "masked_lm_head.dense": "cls.predictions.transform.dense",
                "masked_lm_head.layer_norm": "cls.predictions.transform.LayerNorm",
            }
        )
        yield Pair(
            ours="masked_lm_head.decoder_bias", theirs=("cls.predictions.bias",), by_token=True
        )
    if heads.pair:
        yield from modules({"pair_head": "cls.seq_relationship"})


def write_encoder(config: ModelConfig, special: SpecialIds) -> dict[str, Any]:
    """Return the settings that BERT and RoBERTa have in common."""
    return {
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "hidden_act": config.hidden_act,
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "hidden_size": config.hidden_size,
        "initializer_range": config.initializer_range,
        "intermediate_size": config.intermediate_size,
        "layer_norm_eps": config.layer_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "pad_token_id": special.pad,
        "type_vocab_size": config.type_vocab_size,
    }


def read_encoder(table: ConfigJson) -> dict[str, Any]:
    """Return the fields of ModelConfig that BERT and RoBERTa have in common.

    Raises InputError for what is missing, and for what our encoder cannot be.
    """
    table.one_of("position_embedding_type", ("absolute",), "absolute")
    for key in ("is_decoder", "add_cross_attention"):
        table.one_of(key, (False,), False)
    return {
        "attention_probs_dropout_prob": table.number("attention_probs_dropout_prob", 0.1),
        "hidden_act": table.one_of("hidden_act", ("gelu", "gelu_new"), "gelu"),
        "hidden_dropout_prob": table.number("hidden_dropout_prob", 0.1),
        "hidden_size": table.integer("hidden_size"),
        "initializer_range": table.number("initializer_range", 0.02),
        "intermediate_size": table.integer("intermediate_size"),
        "layer_norm_eps": table.number("layer_norm_eps", 1e-12),
        "max_position_embeddings": table.integer("max_position_embeddings"),
        "num_attention_heads": table.integer("num_attention_heads"),
        "num_hidden_layers": table.integer("num_hidden_layers"),
        "type_vocab_size": table.integer("type_vocab_size", 2),
    }


def _read_config(table: ConfigJson) -> ModelConfig:
    return table.model_config(architecture="bert", **read_encoder(table))


FAMILY = Family(
    architecture="bert",
    model_type="bert",
    base="bert.",
    classes={
        "BertForPreTraining": Heads(masked_lm=True, pooler=True, pair=True),
        "BertForMaskedLM": Heads(masked_lm=True),
        "BertModel": Heads(),
    },
    head_prefixes={
        "masked_lm": "cls.predictions.",
        "pooler": "{base}pooler.",
        "pair": "cls.seq_relationship.",
    },
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    default_pad_token_id=0,
    pairs=_pairs,
    write_config=write_encoder,
    read_config=_read_config,
)
