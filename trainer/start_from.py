"""The weights a run starts from: a checkpoint of transformers in the place of random ones."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.config import require
from pipeline.errors import ConfigError
from pipeline.storage import absolute_uri
from pipeline.vocabulary import read_vocab, unused_ids
from trainer.config import TrainerConfig
from trainer.convert import ImportedFolder, import_folder
from trainer.convert.config_json import ConfigJson
from trainer.convert.names import listed
from trainer.convert.text_rules import text_rules
from trainer.convert.weights_file import TOKENIZER, TOKENIZER_CONFIG, read_checkpoint
from trainer.models.encoder_model import EncoderModel
from trainer.settings.model import ModelConfig

# What says how to train, or what a checkpoint cannot tell, and not what its tensors are.
_FREE = frozenset(
    {
        "attention_probs_dropout_prob",
        "embedding_dropout_prob",
        "hidden_dropout_prob",
        "initializer_range",
        "pad_vocab_size_to_multiple_of",
        "pooler",
        "scale_output_initializer",
    }
)
# With a row a token: a checkpoint may have more rows than its vocabulary has entries, and the run
# gives those to other tokens.
_BY_TOKEN = frozenset({"embeddings.word_embeddings.weight", "masked_lm_head.decoder_bias"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReport:
    """What a checkpoint was to a model."""

    new_tensors: tuple[str, ...]
    """The model's that the checkpoint has not: they keep their random weights."""
    unused_tensors: tuple[str, ...]
    """The checkpoint's heads that the run does not train, under our names; those of a pooler that
    its class does not read, under its own."""
    new_entries: int
    """Rows of the vocabulary beyond the checkpoint's: they keep their random weights."""

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"random weights remain in {listed(self.new_tensors)} and {self.new_entries} new "
            f"entries; left out of it: {listed(self.unused_tensors)}"
        )


def start_identity(config: TrainerConfig) -> dict[str, str]:
    """Return what a training depends on of its start, for its fingerprint; nothing without one."""
    path = config.training.start_from
    return {"start_from_sha256": read_checkpoint(path).sha256} if path else {}


def load_start(model: EncoderModel, path: str, vocab_txt: bytes) -> StartReport:
    """Put the weights of the checkpoint at `path` into `model`, whose vocabulary is `vocab_txt`.

    Embeddings and layers come from the checkpoint; so does a head, where both have it.
    Raises ConfigError for a [model] table, by key, and a vocabulary, by id, that are not the
    checkpoint's; InputError as `import_folder`.
    """
    start = import_folder(path)
    _require_architecture(model.config, start, path)
    known = _require_vocabulary(read_vocab(vocab_txt), start, path)
    if start.model.pad_token_id != model.pad_token_id:
        raise ConfigError(
            f"training.start_from = {path}: its pad_token_id is {start.model.pad_token_id}, the "
            f"run's [PAD] is {model.pad_token_id}: correct its config.json"
        )
    ours, theirs = model.state_dict(), start.model.state
    with torch.no_grad():
        for name in ours.keys() & theirs.keys():
            rows = known if name in _BY_TOKEN else len(theirs[name])
            ours[name][:rows].copy_(theirs[name][:rows])
    return StartReport(
        new_tensors=tuple(sorted(ours.keys() - theirs.keys())),
        unused_tensors=(*sorted(theirs.keys() - ours.keys()), *start.model.left_out),
        new_entries=model.vocab_size - known,
    )


def _require_architecture(config: ModelConfig, start: ImportedFolder, path: str) -> None:
    for field in dataclasses.fields(ModelConfig):
        value, theirs = (getattr(one, field.name) for one in (config, start.model.config))
        require(
            field.name in _FREE or value == theirs,
            f"model.{field.name}",
            value,
            f"training.start_from = {path} has {theirs!r}; `python -m trainer import {path}` "
            "prints its [model] table",
        )


def _require_vocabulary(entries: list[str], start: ImportedFolder, path: str) -> int:
    """Return how many of the run's entries have a row in the checkpoint.

    An id that was [unused] there may have become an entry: its row was hardly trained.
    """
    if start.vocab_txt is None:
        raise ConfigError(
            f"training.start_from = {path}: has no vocab.txt and no tokenizer.json of a WordPiece "
            "model, so nothing tells which rows are ours; name a checkpoint that has one"
        )
    theirs = read_vocab(start.vocab_txt, start.vocabulary_uri)
    unused = set(unused_ids(theirs))
    remedy = f'build it with vocabulary.start_from = "{start.vocabulary_uri}"'
    if len(entries) < len(theirs):
        raise ConfigError(
            f"training.start_from = {path}: its vocabulary has {len(theirs)} entries, the run's "
            f"{len(entries)}; {remedy}"
        )
    for number, (ours, there) in enumerate(zip(entries, theirs, strict=False)):
        if ours != there and number not in unused:
            raise ConfigError(
                f"training.start_from = {path}: id {number} is {there!r} in its vocabulary and "
                f"{ours!r} in the run's; {remedy}"
            )
    return len(theirs)


def start_tables(path: str) -> str:
    """Return the TOML of a run that starts from the checkpoint at `path`, and what it is.

    Raises InputError as `import_folder`.
    """
    start = import_folder(absolute_uri(path))
    model, folder = start.model, start.uri.rpartition("/")[0]
    parameters = sum(tensor.numel() for tensor in model.state.values())
    lines = [
        f"# {model.class_name}: {parameters:,} parameters, {model.vocab_size:,} entries, "
        f"[PAD] = {model.pad_token_id}"
    ]
    if model.left_out:
        lines.append(f"# Left out, because the class does not read it: {listed(model.left_out)}")
    if start.vocab_txt is None:
        lines.append(
            "# It has no vocab.txt and no tokenizer.json of a WordPiece model: no run can start "
            "from it."
        )
    else:
        entries = len(read_vocab(start.vocab_txt, start.vocabulary_uri))
        rules, contradicted = text_rules(
            ConfigJson(start.tokenizer, f"{folder}/{TOKENIZER}"),
            ConfigJson(start.tokenizer_config, f"{folder}/{TOKENIZER_CONFIG}"),
            default_class="BertTokenizer" if model.config.architecture == "bert" else "",
        )
        if contradicted:
            lines.append(
                f"# {TOKENIZER} and {TOKENIZER_CONFIG} contradict each other on case, accents or "
                "CJK characters: compare [vocabulary]."
            )
        lines += _table(
            "vocabulary",
            {
                "start_from": start.vocabulary_uri,
                "vocab_size": entries,
                **dataclasses.asdict(rules),
            },
        )
        lines += _table("training", {"start_from": folder})
    positions = model.config.max_position_embeddings
    positions -= model.config.first_position(model.pad_token_id)
    pairs = "sop" if model.config.architecture == "albert" else "nsp"
    instances = {
        "objective": pairs if model.heads.pair else "full_sentences",
        "max_seq_length": min(positions, 512),
    }
    lines += _table("instances", instances)
    lines += _table("model", dataclasses.asdict(model.config))
    return "\n".join([*lines, ""])


def _table(name: str, values: dict[str, Any]) -> list[str]:
    """Return a TOML table; TOML has no null, so what is None is left to its default."""
    rows = [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]
    return ["", f"[{name}]", *rows]


def _toml(value: object) -> str:
    """Return a string, number or boolean: JSON's are TOML's too, but for two things.

    TOML has no surrogates, in which JSON escapes what is beyond 16 bits, and wants DEL escaped.
    """
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
