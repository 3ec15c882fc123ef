"""Our model as a checkpoint of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
from torch import Tensor

from pipeline.errors import InputError
from trainer.convert.families import family_of
from trainer.convert.family import SpecialIds
from trainer.convert.names import Heads, Twin, to_theirs
from trainer.convert.tokenizer_files import TokenizerSource, tokenizer_files
from trainer.convert.weights_file import CONFIG, WEIGHTS
from trainer.models.encoder_model import EncoderForPreTraining, EncoderModel


def heads_of_model(model: EncoderModel) -> Heads:
    """Return the heads that a model of ours has."""
    pooler = model.pooler is not None
    if not isinstance(model, EncoderForPreTraining):
        return Heads(pooler=pooler)
    return Heads(masked_lm=True, pooler=pooler, pair=model.pair_head is not None)


def twin_of(model: EncoderModel) -> Twin:
    """Return the class of transformers that a model is; InputError if there is none.

    A class without heads writes its names without a prefix, as transformers does.
    """
    family, heads = family_of(model.config.architecture), heads_of_model(model)
    return family.twin(model.config, heads, family.base if heads.masked_lm else "")


def export_state_dict(model: EncoderModel) -> dict[str, Tensor]:
    """Return the weights under the names of transformers, on the CPU; tied copies left out."""
    return to_theirs(twin_of(model), model.state_dict(), model.vocab_size)


def exported_parameters(model: EncoderModel) -> int:
    """Return how many weights `export_state_dict` has.

    Rows that only pad the vocabulary are not counted, and what layers share counts as often as the
    class of transformers has it.
    """
    state, total = model.state_dict(), 0
    for pair in twin_of(model).pairs:
        whole = state[pair.ours]
        rows = whole[: model.vocab_size] if pair.by_token else whole
        total += rows.numel() * (1 + len(pair.copies))
    return total


def export_config(model: EncoderModel, special: SpecialIds) -> dict[str, Any]:
    """Return the config.json of a model's twin."""
    family = family_of(model.config.architecture)
    return {
        **family.write_config(model.config, special),
        "architectures": [twin_of(model).class_name],
        "dtype": "float32",
        "model_type": family.model_type,
        "tie_word_embeddings": True,
        "vocab_size": model.vocab_size,
    }


def export_folder(model: EncoderModel, source: TokenizerSource) -> dict[str, bytes]:
    """Return file name -> bytes of a folder that from_pretrained opens; the same bytes each time.

    Raises InputError when transformers has no such model, and when the vocabulary is not as long
    as the one the model was made for, or has its padding token elsewhere.
    """
    if source.entries != model.vocab_size:
        raise InputError(
            f"vocab.txt has {source.entries} entries, the model {model.vocab_size}: "
            f"export with the vocabulary the model was trained on"
        )
    special = SpecialIds(
        pad=source.id_of("[PAD]"), cls=source.id_of("[CLS]"), sep=source.id_of("[SEP]")
    )
    if special.pad != model.pad_token_id:
        raise InputError(
            f"[PAD] is id {special.pad} of the vocabulary, the model's is {model.pad_token_id}: "
            "export with the vocabulary the model was trained on"
        )
    files = tokenizer_files(
        source,
        max_seq_length=model.max_seq_length,
        segments=model.config.type_vocab_size >= 2,
    )
    return {
        CONFIG: _json(export_config(model, special)),
        WEIGHTS[0]: safetensors.torch.save(export_state_dict(model), {"format": "pt"}),
        **files,
    }


def _json(values: Mapping[str, object]) -> bytes:
    return (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()
