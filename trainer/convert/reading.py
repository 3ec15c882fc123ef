"""A checkpoint of transformers as our model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pipeline.errors import InputError
from pipeline.vocabulary_config import MOST_ENTRIES
from trainer.convert.config_json import ConfigJson
from trainer.convert.families import family_of_checkpoint
from trainer.convert.names import Heads, plain_names, to_ours
from trainer.convert.weights_file import CONFIG, parse_files, read_checkpoint
from trainer.models.encoder_model import EncoderForPreTraining, EncoderModel, PairHead
from trainer.settings.model import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedModel:
    """What a checkpoint of transformers is to us."""

    class_name: str
    """The class of transformers whose tensors it has."""
    config: ModelConfig
    vocab_size: int
    pad_token_id: int
    heads: Heads
    state: dict[str, Tensor]
    """The weights under our names, of the file's dtype, on the CPU."""
    left_out: tuple[str, ...]
    """Weights in the file, under its names, that the class does not read: an unused pooler's."""

    def model(self) -> EncoderModel:
        """Return our model with these weights: EncoderForPreTraining where it has an MLM head."""
        model = _empty_model(self.config, self.vocab_size, self.pad_token_id, self.heads)
        model.load_state_dict(self.state, assign=True)
        return model


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFolder:
    """A checkpoint's folder, read."""

    uri: str
    """Of the weights."""
    model: ImportedModel
    vocab_txt: bytes | None
    """Of vocab.txt or, without one, of tokenizer.json; None where neither is of a WordPiece."""
    vocabulary_uri: str
    """Of the file that holds it; empty without one."""
    tokenizer: Mapping[str, Any]
    """tokenizer.json; empty where the folder has none."""
    tokenizer_config: Mapping[str, Any]
    """tokenizer_config.json; empty where the folder has none."""
    sha256: str
    """Of config.json's settings, weights and vocabulary: what a run that starts there depends
    on."""


def import_folder(path: str) -> ImportedFolder:
    """Read a checkpoint of transformers: a folder, local or s3://, or a weights file in one.

    Read are config.json, model.safetensors (or pytorch_model.bin, of which tensors only are
    taken; whole or split, with an index) and vocab.txt, or the vocabulary of tokenizer.json.
    Weights of half precision become float32, which holds them exactly.

    Raises InputError, naming the file, where one is missing, cut short or damaged; for a model
    that is not BERT, RoBERTa, ALBERT or ModernBERT or has a setting that our encoder has not;
    for missing or unexpected tensors, or tensors of other shapes than config.json says.
    """
    files = read_checkpoint(path)
    tensors = parse_files(files.weights)
    folder = files.uri.rpartition("/")[0]
    config_uri = f"{folder}/{CONFIG}"
    try:
        model = import_state_dict(tensors, files.config, config_uri)
    except InputError as error:
        raise InputError(
            str(error) if config_uri in str(error) else f"{files.uri}: {error}"
        ) from None
    if files.vocab_txt is not None:
        # Only line feeds end an entry; the last one may have none.
        entries = len(files.vocab_txt.removesuffix(b"\n").split(b"\n"))
        if entries > model.vocab_size:
            raise InputError(
                f"{files.vocabulary_uri}: has {entries} entries, the embeddings have "
                f"{model.vocab_size} rows: it belongs to another model"
            )
    return ImportedFolder(
        uri=files.uri,
        model=replace(model, state={name: tensor.float() for name, tensor in model.state.items()}),
        vocab_txt=files.vocab_txt,
        vocabulary_uri=files.vocabulary_uri,
        tokenizer=files.tokenizer,
        tokenizer_config=files.tokenizer_config,
        sha256=files.sha256,
    )


def import_state_dict(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], uri: str = CONFIG
) -> ImportedModel:
    """Return the tensors of a model of transformers under our names; `config` is its config.json.

    Taken are the names that data-parallel and compiled modules have, gamma and beta of old files,
    tied copies of the decoder, and the position_ids buffer. A pooler beside an MLM head without a
    pair head is left out, and named.

    Raises InputError as `import_folder`.
    """
    table = ConfigJson(config, uri)
    family = family_of_checkpoint(table)
    theirs = plain_names(tensors)
    class_name = _class_name(table, family.classes)
    said = family.classes.get(class_name or "", Heads())
    base = family.base if said.masked_lm else family.base_of(theirs)
    heads = family.heads_of(theirs, said, base)
    # Without the head the key means nothing: there is no decoder.
    if heads.masked_lm and table.table.get("tie_word_embeddings", True) is not True:
        raise table.error(
            "tie_word_embeddings",
            "only true can be imported: our decoder is the embeddings, not a second parameter",
        )
    model_config = family.refine_config(family.read_config(table), theirs, base)
    vocab_size = table.integer("vocab_size")
    pad_token_id = table.integer("pad_token_id", family.default_pad_token_id)
    if not 1 <= vocab_size <= MOST_ENTRIES:
        raise table.error("vocab_size", f"must be in [1, {MOST_ENTRIES}]")
    if not 0 <= pad_token_id < vocab_size:
        raise table.error("pad_token_id", f"must be an id of the vocabulary, [0, {vocab_size})")
    first = model_config.first_position(pad_token_id)
    if first >= model_config.max_position_embeddings:
        raise table.error(
            "max_position_embeddings",
            f"leaves no position for a token: behind pad_token_id = {pad_token_id} the first has "
            f"row {first}",
        )
    twin = family.twin(model_config, heads, base)
    model = _empty_model(model_config, vocab_size, pad_token_id, heads)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return ImportedModel(
        class_name=twin.class_name,
        config=model_config,
        vocab_size=vocab_size,
        pad_token_id=pad_token_id,
        heads=heads,
        state=to_ours(twin, theirs, shapes),
        left_out=tuple(sorted(twin.left_out & theirs.keys())),
    )


def _class_name(table: ConfigJson, known: Mapping[str, Heads]) -> str | None:
    """Return the class that config.json names, if it is one whose heads we know.

    Another class of the same family, a classifier say, has tensors that are refused by name.
    """
    names = table.table.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise table.error("architectures", "must be a list of names of classes")
    return next((name for name in names if name in known), None)


def _empty_model(
    config: ModelConfig, vocab_size: int, pad_token_id: int, heads: Heads
) -> EncoderModel:
    """Return our model with these heads and without weights, on the device "meta"."""
    if not heads.masked_lm:
        return EncoderModel(config, vocab_size, pad_token_id, pooler=heads.pooler, seed=None)
    pair_head: PairHead = "sop" if config.architecture == "albert" else "nsp"
    return EncoderForPreTraining(
        config, vocab_size, pad_token_id, pair_head=pair_head if heads.pair else None, seed=None
    )
