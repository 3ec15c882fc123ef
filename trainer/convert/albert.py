"""ALBERT (Lan et al. 2020): AlbertModel, AlbertForMaskedLM, AlbertForPreTraining of transformers.

transformers shares whole layers, in num_hidden_groups groups. Sharing everything is one group, the
v2 models; sharing nothing, or only the attention or the feed-forward blocks, is a group for each
layer, in which what is shared stands again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trainer.convert.config_json import ConfigJson
from trainer.convert.family import Family, SpecialIds, modules
from trainer.convert.names import Heads, Pair
from trainer.settings.model import ModelConfig

_EMBEDDINGS = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.token_type_embeddings": "embeddings.token_type_embeddings",
    "embeddings.layer_norm": "embeddings.LayerNorm",
    "embeddings.projection": "encoder.embedding_hidden_mapping_in",
}
_LAYER = "encoder.albert_layer_groups.{group}.albert_layers.0."
_ATTENTION = {"output": "attention.dense", "layer_norm": "attention.LayerNorm"}
_FEED_FORWARD = {
    "intermediate": "ffn",
    "output": "ffn_output",
    "layer_norm": "full_layer_layer_norm",
}
_QKV = tuple(f"attention.{part}" for part in ("query", "key", "value"))


def _pairs(config: ModelConfig, heads: Heads, base: str) -> Iterator[Pair]:
    yield from modules({ours: base + theirs for ours, theirs in _EMBEDDINGS.items()})
    groups = range(_num_groups(config))
    attention_shared = config.parameter_sharing in ("attention", "all")
    feed_forward_shared = config.parameter_sharing in ("ffn", "all")
    attention = {ours: (theirs,) for ours, theirs in _ATTENTION.items()} | {"qkv": _QKV}
    feed_forward = {ours: (theirs,) for ours, theirs in _FEED_FORWARD.items()}
    yield from _blocks("encoder.attention", attention, base, groups, attention_shared)
    yield from _blocks("encoder.feed_forward", feed_forward, base, groups, feed_forward_shared)
    if heads.pooler:
        yield from modules({"pooler.dense": f"{base}pooler"})
    if heads.masked_lm:
        yield from modules(
            {
                "masked_lm_head.dense": "predictions.dense",
                "masked_lm_head.layer_norm": "predictions.LayerNorm",
            }
        )
        yield Pair(ours="masked_lm_head.decoder_bias", theirs=("predictions.bias",), by_token=True)
    if heads.pair:
        yield from modules({"pair_head": "sop_classifier.classifier"})


def _blocks(
    block: str, parts: Mapping[str, tuple[str, ...]], base: str, groups: range, shared: bool
) -> Iterator[Pair]:
    """Yield the blocks of one kind: each beside its group's, or the one there is beside all."""
    for ours, theirs in parts.items():
        for kind in ("weight", "bias"):
            places = [
                tuple(f"{base}{_LAYER.format(group=group)}{name}.{kind}" for name in theirs)
                for group in groups
            ]
            if shared:
                first, *copies = places
                yield Pair(ours=f"{block}.0.{ours}.{kind}", theirs=first, copies=tuple(copies))
                continue
            for number, names in enumerate(places):
                yield Pair(ours=f"{block}.{number}.{ours}.{kind}", theirs=names)


def _num_groups(config: ModelConfig) -> int:
    return 1 if config.parameter_sharing == "all" else config.num_hidden_layers


def _write_config(config: ModelConfig, special: SpecialIds) -> dict[str, Any]:
    return {
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "bos_token_id": special.cls,
        "classifier_dropout_prob": config.hidden_dropout_prob,
        "embedding_size": config.embedding_size,
        "eos_token_id": special.sep,
        "hidden_act": config.hidden_act,
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "hidden_size": config.hidden_size,
        "initializer_range": config.initializer_range,
        "inner_group_num": 1,
        "intermediate_size": config.intermediate_size,
        "layer_norm_eps": config.layer_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_groups": _num_groups(config),
        "num_hidden_layers": config.num_hidden_layers,
        "pad_token_id": special.pad,
        "type_vocab_size": config.type_vocab_size,
    }


def _read_config(table: ConfigJson) -> ModelConfig:
    """Return the config; more than one group shares nothing until `_detect_sharing` has looked."""
    table.one_of("position_embedding_type", ("absolute",), "absolute")
    table.one_of("inner_group_num", (1,), 1)
    layers = table.integer("num_hidden_layers")
    groups = table.one_of("num_hidden_groups", tuple(sorted({1, layers})), 1)
    return table.model_config(
        architecture="albert",
        attention_probs_dropout_prob=table.number("attention_probs_dropout_prob", 0.0),
        embedding_size=table.integer("embedding_size", 128),
        hidden_act=table.one_of("hidden_act", ("gelu", "gelu_new"), "gelu_new"),
        hidden_dropout_prob=table.number("hidden_dropout_prob", 0.0),
        hidden_size=table.integer("hidden_size"),
        initializer_range=table.number("initializer_range", 0.02),
        intermediate_size=table.integer("intermediate_size"),
        layer_norm_eps=table.number("layer_norm_eps", 1e-12),
        max_position_embeddings=table.integer("max_position_embeddings"),
        num_attention_heads=table.integer("num_attention_heads"),
        num_hidden_layers=layers,
        parameter_sharing="all" if groups == 1 else "none",
        type_vocab_size=table.integer("type_vocab_size", 2),
    )


def _detect_sharing(config: ModelConfig, theirs: Mapping[str, Tensor], base: str) -> ModelConfig:
    """Return the config with the sharing that the groups' weights show.

    Blocks of one kind that are equal in every group were one block: so a model that shares them
    comes back from its export as it was. Where both kinds are, nothing is taken as shared: sharing
    all would be one group.
    """
    groups = range(_num_groups(config))
    if len(groups) == 1:
        return config
    attention = _equal_everywhere(theirs, base, groups, (*_ATTENTION.values(), *_QKV))
    feed_forward = _equal_everywhere(theirs, base, groups, tuple(_FEED_FORWARD.values()))
    if attention and feed_forward:
        return replace(config, parameter_sharing="none")
    if attention:
        return replace(config, parameter_sharing="attention")
    return replace(config, parameter_sharing="ffn" if feed_forward else "none")


def _equal_everywhere(
    theirs: Mapping[str, Tensor], base: str, groups: range, modules_of_block: tuple[str, ...]
) -> bool:
    for module in modules_of_block:
        for kind in ("weight", "bias"):
            tensors = [
                theirs.get(f"{base}{_LAYER.format(group=group)}{module}.{kind}") for group in groups
            ]
            first = tensors[0]
            if first is None or any(
                one is None or not torch.equal(one, first) for one in tensors[1:]
            ):
                return False
    return True


FAMILY = Family(
    architecture="albert",
    model_type="albert",
    base="albert.",
    classes={
        "AlbertForPreTraining": Heads(masked_lm=True, pooler=True, pair=True),
        "AlbertForMaskedLM": Heads(masked_lm=True),
        "AlbertModel": Heads(),
    },
    head_prefixes={
        "masked_lm": "predictions.",
        "pooler": "{base}pooler.",
        "pair": "sop_classifier.",
    },
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    default_pad_token_id=0,
    pairs=_pairs,
    write_config=_write_config,
    read_config=_read_config,
    refine_config=_detect_sharing,
)
