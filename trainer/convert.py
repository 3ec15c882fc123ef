"""Weights and tokenizer of BERT between our names and a Hugging Face model folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import safetensors.torch
import torch
from torch import Tensor

from pipeline.errors import InputError
from trainer.model_config import ModelConfig
from trainer.models.encoder_model import EncoderForPreTraining

# Our module -> its Hugging Face twin; {i} is the layer.
_MODULES = {
    "embeddings.word_embeddings": "bert.embeddings.word_embeddings",
    "embeddings.position_embeddings": "bert.embeddings.position_embeddings",
    "embeddings.token_type_embeddings": "bert.embeddings.token_type_embeddings",
    "embeddings.layer_norm": "bert.embeddings.LayerNorm",
    "pooler.dense": "bert.pooler.dense",
    "masked_lm_head.dense": "cls.predictions.transform.dense",
    "masked_lm_head.layer_norm": "cls.predictions.transform.LayerNorm",
    "pair_head": "cls.seq_relationship",
}
_LAYER_MODULES = {
    "encoder.attention.{i}.output": "bert.encoder.layer.{i}.attention.output.dense",
    "encoder.attention.{i}.layer_norm": "bert.encoder.layer.{i}.attention.output.LayerNorm",
    "encoder.feed_forward.{i}.intermediate": "bert.encoder.layer.{i}.intermediate.dense",
    "encoder.feed_forward.{i}.output": "bert.encoder.layer.{i}.output.dense",
    "encoder.feed_forward.{i}.layer_norm": "bert.encoder.layer.{i}.output.LayerNorm",
}
_QKV = "encoder.attention.{i}.qkv"
_QKV_PARTS = tuple(
    f"bert.encoder.layer.{{i}}.attention.self.{part}" for part in ("query", "key", "value")
)
_DECODER_BIAS = ("masked_lm_head.decoder_bias", "cls.predictions.bias")

# Tied copies that older files carry: they must be equal to what they are tied to.
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_IGNORED = frozenset({"bert.embeddings.position_ids"})
_PREFIXES = ("module.", "_orig_mod.")
_OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))

_SPECIAL_TOKENS = {
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
}


def _name_pairs(num_hidden_layers: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each of our tensors with its Hugging Face twin, or the three it is stacked from."""
    for ours, theirs in _MODULES.items():
        kinds = ("weight",) if ours.endswith("_embeddings") else ("weight", "bias")
        for kind in kinds:
            yield f"{ours}.{kind}", (f"{theirs}.{kind}",)
    for i in range(num_hidden_layers):
        for kind in ("weight", "bias"):
            for ours, theirs in _LAYER_MODULES.items():
                yield f"{ours.format(i=i)}.{kind}", (f"{theirs.format(i=i)}.{kind}",)
            parts = tuple(f"{part.format(i=i)}.{kind}" for part in _QKV_PARTS)
            yield f"{_QKV.format(i=i)}.{kind}", parts
    yield _DECODER_BIAS[0], (_DECODER_BIAS[1],)


def export_state_dict(model: EncoderForPreTraining) -> dict[str, Tensor]:
    """Return the weights under Hugging Face names, contiguous, on the CPU; tied copies left out."""
    ours = model.state_dict()
    tensors: dict[str, Tensor] = {}
    for name, twins in _name_pairs(model.config.num_hidden_layers):
        for twin, part in zip(twins, ours[name].chunk(len(twins)), strict=True):
            tensors[twin] = part.detach().cpu().contiguous()
    return tensors


def import_state_dict(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a Hugging Face BertForPreTraining under our names.

    Taken are the prefixes of data-parallel and compiled models, the names gamma and beta of old
    files, tied copies of the decoder, and the position_ids buffer.

    Raises InputError that names every missing or unexpected tensor, and a decoder that is not
    tied to the embeddings.
    """
    theirs = {_plain_name(name): tensor for name, tensor in tensors.items()}
    layers = [re.match(r"bert\.encoder\.layer\.(\d+)\.", name) for name in theirs]
    count = 1 + max((int(match.group(1)) for match in layers if match), default=-1)
    pairs = list(_name_pairs(count))
    expected = {twin for _, twins in pairs for twin in twins}
    missing = sorted(expected - theirs.keys())
    unexpected = sorted(theirs.keys() - expected - _TIED.keys() - _IGNORED)
    if count == 0 or missing or unexpected:
        raise InputError(
            f"not the weights of a BertForPreTraining with {count} layers: "
            f"missing: {', '.join(missing) or 'none'}; "
            f"unexpected: {', '.join(unexpected) or 'none'}"
        )
    for copy, original in _TIED.items():
        if copy in theirs and not torch.equal(theirs[copy], theirs[original]):
            raise InputError(f"{copy} differs from {original}: the decoder must be tied to it")
    return {name: torch.cat([theirs[twin] for twin in twins]) for name, twins in pairs}


def _plain_name(name: str) -> str:
    while name.startswith(_PREFIXES):
        name = name.split(".", 1)[1]
    for old, new in _OLD_NAMES:
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name


def export_config(config: ModelConfig, vocab_size: int, pad_token_id: int) -> dict[str, object]:
    """Return the config.json of the Hugging Face twin."""
    return {
        "architectures": ["BertForPreTraining"],
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "dtype": "float32",
        "hidden_act": config.hidden_act,
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "hidden_size": config.hidden_size,
        "initializer_range": config.initializer_range,
        "intermediate_size": config.intermediate_size,
        "layer_norm_eps": config.layer_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "model_type": "bert",
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "pad_token_id": pad_token_id,
        "tie_word_embeddings": True,
        "type_vocab_size": config.type_vocab_size,
        "vocab_size": vocab_size,
    }


def export_folder(
    model: EncoderForPreTraining,
    config: ModelConfig,
    *,
    tokenizer_json: bytes,
    vocab_txt: bytes,
    lowercase: bool,
    strip_accents: bool,
    handle_chinese_chars: bool,
    max_seq_length: int,
) -> dict[str, bytes]:
    """Return file name -> bytes of a folder that from_pretrained opens; the same bytes each time.

    The tokenizer's case, accent and CJK settings stand in tokenizer_config.json as well as in
    tokenizer.json, because some loaders read only one of them.

    Raises InputError when the vocabulary is not as long as the model's embeddings.
    """
    # Entries end at \n only: str.splitlines would cut at Unicode separators inside entries.
    entries = vocab_txt.count(b"\n") + (not vocab_txt.endswith(b"\n"))
    if entries != model.vocab_size:
        raise InputError(
            f"vocab.txt has {entries} entries, the model {model.vocab_size}: "
            f"export with the vocabulary the model was trained on"
        )
    longest_word = json.loads(tokenizer_json)["model"]["max_input_chars_per_word"]
    tokenizer_config: dict[str, object] = {
        **_SPECIAL_TOKENS,
        "do_lower_case": lowercase,
        # The generic tokenizer class leaves out token_type_ids unless they are asked for.
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": max_seq_length,
        "strip_accents": strip_accents,
        "tokenize_chinese_chars": handle_chinese_chars,
        # BertTokenizer builds itself anew from the vocabulary and has no such setting: with
        # another limit than its own only the generic class keeps tokenizer.json as it is.
        "tokenizer_class": "BertTokenizer" if longest_word == 100 else "PreTrainedTokenizerFast",
    }
    return {
        "config.json": _json(export_config(config, model.vocab_size, model.pad_token_id)),
        "model.safetensors": safetensors.torch.save(export_state_dict(model), {"format": "pt"}),
        "tokenizer.json": tokenizer_json,
        "tokenizer_config.json": _json(tokenizer_config),
        "vocab.txt": vocab_txt,
    }


def _json(values: Mapping[str, object]) -> bytes:
    return (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()
