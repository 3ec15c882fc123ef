"""ModernBERT (Warner et al. 2024): ModernBertModel and ModernBertForMaskedLM of transformers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from trainer.convert.config_json import ConfigJson
from trainer.convert.family import Family, SpecialIds
from trainer.convert.names import Heads, Pair
from trainer.settings.model import ModelConfig

_LAYER = {
    "encoder.attention.{i}.layer_norm": "layers.{i}.attn_norm",
    "encoder.attention.{i}.qkv": "layers.{i}.attn.Wqkv",
    "encoder.attention.{i}.output": "layers.{i}.attn.Wo",
    "encoder.feed_forward.{i}.layer_norm": "layers.{i}.mlp_norm",
    "encoder.feed_forward.{i}.intermediate": "layers.{i}.mlp.Wi",
    "encoder.feed_forward.{i}.output": "layers.{i}.mlp.Wo",
}
_HEAD = {"masked_lm_head.dense": "head.dense", "masked_lm_head.layer_norm": "head.norm"}
# The first layer reads what the embeddings' norm gives: it has no norm of its own.
_ABSENT = "encoder.attention.0.layer_norm"


def _pairs(config: ModelConfig, heads: Heads, base: str) -> Iterator[Pair]:
    kinds = ("weight", "bias") if config.bias else ("weight",)
    names = {"embeddings.layer_norm": f"{base}embeddings.norm"}
    for i in range(config.num_hidden_layers):
        names |= {ours.format(i=i): base + theirs.format(i=i) for ours, theirs in _LAYER.items()}
    names["encoder.final_norm"] = f"{base}final_norm"
    del names[_ABSENT]
    yield Pair(
        ours="embeddings.word_embeddings.weight",
        theirs=(f"{base}embeddings.tok_embeddings.weight",),
        by_token=True,
    )
    if heads.masked_lm:
        names |= _HEAD
        yield Pair(ours="masked_lm_head.decoder_bias", theirs=("decoder.bias",), by_token=True)
    for ours, theirs in names.items():
        for kind in kinds:
            yield Pair(ours=f"{ours}.{kind}", theirs=(f"{theirs}.{kind}",))


def _write_config(config: ModelConfig, special: SpecialIds) -> dict[str, Any]:
    layers = range(config.num_hidden_layers)
    return {
        "attention_bias": config.bias,
        "attention_dropout": config.attention_probs_dropout_prob,
        "bos_token_id": special.cls,
        "classifier_activation": config.hidden_act,
        "classifier_bias": config.bias,
        "cls_token_id": special.cls,
        "decoder_bias": True,
        "embedding_dropout": config.embedding_dropout,
        "eos_token_id": special.sep,
        "hidden_activation": config.hidden_act,
        "hidden_size": config.hidden_size,
        "initializer_range": config.initializer_range,
        "intermediate_size": config.intermediate_size,
        "layer_types": [
            "full_attention" if config.is_global(layer) else "sliding_attention" for layer in layers
        ],
        "local_attention": config.local_attention_window,
        "max_position_embeddings": config.max_position_embeddings,
        "mlp_bias": config.bias,
        "mlp_dropout": config.hidden_dropout_prob,
        "norm_bias": config.bias,
        "norm_eps": config.layer_norm_eps,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "pad_token_id": special.pad,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": config.global_rope_theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": config.local_rope_theta},
        },
        "sep_token_id": special.sep,
        # transformers 4 knows these three, and not layer_types and rope_parameters.
        "global_attn_every_n_layers": config.global_attention_every,
        "global_rope_theta": config.global_rope_theta,
        "local_rope_theta": config.local_rope_theta,
    }


def _read_config(table: ConfigJson) -> ModelConfig:
    bias = table.one_of("norm_bias", (True, False), False)
    for key in ("attention_bias", "mlp_bias", "classifier_bias"):
        table.one_of(key, (bias,), False)
    table.one_of("decoder_bias", (True,), True)
    hidden_act = table.one_of("hidden_activation", ("gelu", "gelu_new"), "gelu")
    table.one_of("classifier_activation", (hidden_act,), "gelu")
    # Ours are in other places: see TWIN_SWITCHES.
    for key in ("attention_dropout", "mlp_dropout"):
        table.one_of(key, (0.0,), 0.0)
    layers = table.integer("num_hidden_layers")
    # transformers would turn every angle by it, whatever rope_parameters says.
    if table.table.get("rope_scaling") is not None:
        raise table.error("rope_scaling", "only null can be imported: ours scales no angles")
    hidden, heads = table.integer("hidden_size"), table.integer("num_attention_heads")
    # transformers would make angles for heads of this width.
    if table.table.get("head_dim") is not None and table.integer("head_dim") * heads != hidden:
        raise table.error("head_dim", "must be hidden_size / num_attention_heads")
    window = table.integer("local_attention", 128)
    # transformers 5 takes the window from here, transformers 4 from local_attention.
    if table.integer("sliding_window", window // 2) != window // 2:
        raise table.error(
            "sliding_window", f"must be half of local_attention = {window}; correct one of the two"
        )
    return table.model_config(
        architecture="modern",
        attention_probs_dropout_prob=0.0,
        bias=bias,
        embedding_dropout_prob=table.number("embedding_dropout", 0.0),
        feed_forward="geglu",
        global_attention_every=_global_attention_every(table, layers),
        global_rope_theta=_rope_theta(table, "full_attention", "global_rope_theta", 160_000.0),
        hidden_act=hidden_act,
        hidden_dropout_prob=0.0,
        hidden_size=hidden,
        initializer_range=table.number("initializer_range", 0.02),
        intermediate_size=table.integer("intermediate_size"),
        layer_norm_eps=table.number("norm_eps", 1e-5),
        local_attention_window=window,
        local_rope_theta=_rope_theta(table, "sliding_attention", "local_rope_theta", 10_000.0),
        max_position_embeddings=table.integer("max_position_embeddings"),
        norm_position="pre",
        num_attention_heads=heads,
        num_hidden_layers=layers,
        pooler=False,
        position_embedding_type="rotary",
        scale_output_initializer=True,
        type_vocab_size=0,
    )


def _global_attention_every(table: ConfigJson, layers: int) -> int:
    """Return n of the layers 0, n, 2 n, ... that attend globally; InputError if there is none."""
    said = table.integer("global_attn_every_n_layers", 3)
    kinds = table.table.get("layer_types")
    if kinds is None:
        return said
    every: int
    for every in (said, *range(1, layers + 1)):
        pattern = [
            "sliding_attention" if layer % every else "full_attention" for layer in range(layers)
        ]
        if kinds == pattern:
            return every
    raise table.error("layer_types", 'must be "full_attention" in every n-th layer, from the first')


def _rope_theta(table: ConfigJson, kind: str, old_key: str, default: float) -> float:
    """Return the base of one kind's angles; InputError for what else would change them."""
    by_kind = table.table.get("rope_parameters") or {}
    parameters = (by_kind.get(kind) or {}) if isinstance(by_kind, dict) else by_kind
    if not isinstance(parameters, dict):
        raise table.error("rope_parameters", f"must be a table with a table {kind}")
    # "type" is the first name of "rope_type", which transformers still reads.
    for key in ("rope_type", "type"):
        if parameters.get(key, "default") != "default":
            raise table.error(
                "rope_parameters", f'only {key} "default" can be imported, in {kind} as well'
            )
    if "rope_theta" not in parameters:
        # Absent is the default; null is another base in transformers 4, and none in 5.
        if table.table.get(old_key, default) is None:
            raise table.error(old_key, "must be a number")
        return table.number(old_key, default)
    theta = parameters["rope_theta"]
    number = isinstance(theta, int | float) and not isinstance(theta, bool)
    if not number or not abs(theta) <= sys.float_info.max:
        raise table.error("rope_parameters", f"{kind}.rope_theta must be a number")
    return float(theta)


FAMILY = Family(
    architecture="modern",
    model_type="modernbert",
    base="model.",
    classes={"ModernBertForMaskedLM": Heads(masked_lm=True), "ModernBertModel": Heads()},
    head_prefixes={"masked_lm": "head."},
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    default_pad_token_id=50_283,
    pairs=_pairs,
    write_config=_write_config,
    read_config=_read_config,
)
