"""Which ids are not learned: special tokens, [unused] entries, the user's own tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pipeline.errors import ConfigError
from pipeline.normalization import TextRules
from pipeline.pretokenize import words_of

Layout = Literal["bert", "compact"]

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
PRINTABLE_ASCII = "".join(map(chr, range(ord("!"), ord("~") + 1)))

_UNUSED = re.compile(r"\[unused(\d+)\]")
_UNUSED_OF_BERT = 99  # those between [PAD] and [UNK] in the released vocabularies


def leading_entries(layout: Layout) -> list[str]:
    """Return the entries that stand before all others.

    compact: the special tokens as ids 0 to 4. bert: [PAD] 0, [unused0] to [unused98], [UNK] 100,
    [CLS] 101, [SEP] 102, [MASK] 103, as in the vocabularies released with Devlin et al. 2019.
    """
    if layout == "compact":
        return list(SPECIAL_TOKENS)
    pad, *others = SPECIAL_TOKENS
    return [pad, *(f"[unused{number}]" for number in range(_UNUSED_OF_BERT)), *others]


def unused_ids(entries: Sequence[str]) -> list[int]:
    """Return the ids of [unused] entries, ascending: no text gives them, no mask should."""
    return [number for number, entry in enumerate(entries) if _UNUSED.fullmatch(entry)]


def special_ids(entries: Sequence[str]) -> dict[str, int]:
    """Return the ids of the special tokens of a checked vocabulary."""
    return {token: list(entries).index(token) for token in SPECIAL_TOKENS}


def pad_entries(entries: Sequence[str], multiple: int) -> list[str]:
    """Return `entries` and as many new [unused] ones as make their number such a multiple."""
    numbers = [int(match[1]) for entry in entries if (match := _UNUSED.fullmatch(entry))]
    first = max(numbers, default=-1) + 1
    return [*entries, *(f"[unused{first + more}]" for more in range(-len(entries) % multiple))]


def check_vocab_size(vocab_size: int, leading: Sequence[str]) -> None:
    """Raise ConfigError where the entries that must stand first leave no room for any other."""
    if vocab_size <= len(leading):
        raise ConfigError(
            f"vocabulary.vocab_size = {vocab_size}: vocabulary.layout and user_tokens alone are"
            f" {len(leading)} entries; raise it"
        )


def required_characters(rules: TextRules) -> str:
    """Return the printable ASCII characters of normalised text: no capitals where it has none."""
    return "".join(dict.fromkeys(rules.normalizer().normalize_str(PRINTABLE_ASCII)))


def check_user_tokens(tokens: Sequence[str], rules: TextRules, longest_word: int) -> None:
    """Raise ConfigError for a token that no text can give under these rules, or that stands twice.

    A token is a word as the normaliser leaves it, or ## and the rest of one. As an entry of the
    vocabulary it stands for whole words, or their beginnings, and never cuts a word in two.
    """
    for place, token in enumerate(tokens):
        word = token.removeprefix(CONTINUATION) if token != CONTINUATION else token
        found = words_of(word, rules)
        where = f"vocabulary.user_tokens: {token!r}"
        if token in tokens[:place]:
            raise ConfigError(f"{where}: stands there twice; remove one")
        if found != [word]:
            raise ConfigError(
                f"{where}: text gives {' '.join(found) or 'nothing'!r} for it, so it would never"
                " be used; write single words as they are after normalisation"
            )
        if len(word) > longest_word:
            raise ConfigError(
                f"{where}: {len(word)} characters: words beyond"
                f" vocabulary.max_input_chars_per_word = {longest_word} are [UNK]"
            )
