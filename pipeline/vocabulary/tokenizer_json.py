"""The vocabulary that a tokenizer.json of the tokenizers library holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import InputError
from pipeline.vocabulary.layout import CONTINUATION


def wordpiece_entries(tokenizer: Mapping[str, Any], name: str) -> list[str] | None:
    """Return the entries of a parsed tokenizer.json by id; None where its model is no WordPiece.

    Added tokens stand at their ids, as transformers has them.
    Raises InputError, naming file and id, where a vocab.txt could not hold them: ids with holes or
    with two entries, an entry with a line feed, pieces that begin with anything but ##.
    """
    model = tokenizer.get("model")
    # Early files do not name the model's type; only WordPiece has a longest word.
    if not isinstance(model, dict) or (
        model.get("type", "WordPiece" if "max_input_chars_per_word" in model else "") != "WordPiece"
    ):
        return None
    prefix = model.get("continuing_subword_prefix", CONTINUATION)
    if prefix != CONTINUATION:
        raise InputError(
            f"{name}: continuing_subword_prefix = {prefix!r}: pieces must begin with "
            f"{CONTINUATION!r}"
        )
    by_id: dict[int, str] = {}
    for entry, number in _numbered(tokenizer, model, name):
        if by_id.setdefault(number, entry) != entry:
            raise InputError(
                f"{name}: id {number} is {by_id[number]!r} and {entry!r}: an id must have one entry"
            )
        if "\n" in entry or not _is_text(entry):
            raise InputError(
                f"{name}: id {number} is {entry!r}: a vocabulary of lines cannot hold it"
            )
    hole = next((number for number in range(len(by_id)) if number not in by_id), None)
    if hole is not None:
        raise InputError(
            f"{name}: no entry has id {hole} of {len(by_id)}: ids must be 0, 1, ... without a hole"
        )
    return [by_id[number] for number in range(len(by_id))]


def _numbered(
    tokenizer: Mapping[str, Any], model: Mapping[str, Any], name: str
) -> list[tuple[str, int]]:
    """Return every entry and its id: the model's, and the added tokens."""
    entries, added = model.get("vocab"), tokenizer.get("added_tokens") or []
    if not isinstance(entries, dict):
        raise InputError(f"{name}: model.vocab must be a table, entry -> id")
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise InputError(f"{name}: added_tokens must be a list of tables")
    pairs = [*entries.items(), *((token.get("content"), token.get("id")) for token in added)]
    for entry, number in pairs:
        if not isinstance(entry, str) or not isinstance(number, int) or isinstance(number, bool):
            raise InputError(f"{name}: {entry!r} has id {number!r}: must be a whole number")
    return pairs


def _is_text(entry: str) -> bool:
    """Tell whether UTF-8 has it: JSON can name half a character."""
    return not any("\ud800" <= character <= "\udfff" for character in entry)
