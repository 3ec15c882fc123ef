"""WordPiece from word counts: merge the most frequent pair of pieces until the size is reached.

This is the rule of the tokenizers library's WordPieceTrainer (byte-pair merges over a word's
first character and the ## forms of the others), with a stated order for ties: of equally
frequent pairs the one with the smaller left id, then the smaller right id; ids follow the order
of the entries. So the vocabulary is a function of the counts alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.errors import ConfigError, InputError
from pipeline.pretokenize import text_buffers
from pipeline.vocabulary.counts import check_counts
from pipeline.vocabulary.files import CONTINUATION
from pipeline.vocabulary.pair_queue import PairQueue

_CODE_POINTS = 0x110000
_CONTINUES = _CODE_POINTS  # added to a code point that does not begin its word


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Letters:
    """Words as characters: forms int32 [characters], starts int64 [words + 1], counts int64."""

    forms: NDArray[np.int32]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]


def train_wordpiece(
    counts: pa.Table,
    *,
    vocab_size: int,
    special_tokens: Sequence[str],
    min_frequency: int,
    alphabet_limit: int,
) -> list[str]:
    """Return exactly `vocab_size` entries: special tokens, the alphabet, then pieces as merged.

    `counts` is {word, count} in any order. The alphabet is the `alphabet_limit` most frequent
    characters (then the smaller code point), printable ASCII always among them; a word with any
    other character is left out, as it would be [UNK]. A character has its initial and its ##
    form where it occurs so. Pieces seen fewer than `min_frequency` times are not made.
    Raises ConfigError where the size cannot be met, InputError for an empty table.
    """
    if vocab_size < 1 or alphabet_limit < 1 or min_frequency < 1:
        raise ConfigError(
            f"vocabulary: vocab_size = {vocab_size}, alphabet_limit = {alphabet_limit},"
            f" min_frequency = {min_frequency}: each must be at least 1"
        )
    if counts.num_rows == 0:
        raise InputError("word counts: the table is empty: the corpus has no words")
    check_counts(counts)
    # One order whatever the table's: the entries do not depend on it, the run time does.
    letters = _letters(counts.sort_by("word"))
    forms, letters = _limit_alphabet(letters, alphabet_limit)
    entries = [*special_tokens, *map(_entry, forms.tolist())]
    if len(entries) > vocab_size:
        raise ConfigError(
            f"vocabulary.vocab_size = {vocab_size}: the special tokens and the alphabet alone are"
            f" {len(entries)} entries; raise it or lower vocabulary.alphabet_limit"
        )
    symbols = (np.searchsorted(forms, letters.forms) + len(special_tokens)).astype(np.int32)
    pairs = PairQueue(symbols, letters.starts, letters.counts, min_frequency)
    ids = {entry: index for index, entry in enumerate(entries)}
    while len(entries) < vocab_size:
        pair = pairs.pop()
        if pair is None:
            raise ConfigError(
                f"vocabulary.vocab_size = {vocab_size}: this corpus gives at most {len(entries)}"
                " entries; lower it or add text"
            )
        left, right = pair
        piece = entries[left] + entries[right].removeprefix(CONTINUATION)
        # Different merges may spell the same piece: then it keeps the id it has.
        piece_id = ids.setdefault(piece, len(entries))
        if piece_id == len(entries):
            entries.append(piece)
        pairs.merge(left, right, piece_id)
    return entries


def _letters(counts: pa.Table) -> _Letters:
    words = counts["word"].combine_chunks()
    words = words.chunk(0) if isinstance(words, pa.ChunkedArray) else words
    text, offsets = text_buffers(words)
    characters = text[offsets[0] : offsets[-1]].tobytes().decode().encode("utf-32-le")
    forms = np.frombuffer(characters, np.int32) + _CONTINUES
    lengths = pc.utf8_length(words).to_numpy()
    starts = np.concatenate(([0], np.cumsum(lengths)))
    forms[starts[:-1][lengths > 0]] -= _CONTINUES
    word_counts = counts["count"].to_numpy()
    total = float(np.dot(word_counts.astype(np.float64), lengths.astype(np.float64)))
    if total >= 2.0**62:
        raise InputError(
            f"word counts: {total:.3g} characters in all: pairs could pass 2**63 - 1; lower the"
            " corpus weights"
        )
    return _Letters(forms=forms, starts=starts, counts=word_counts)


def _limit_alphabet(letters: _Letters, limit: int) -> tuple[NDArray[np.int32], _Letters]:
    """Return the sorted forms of the alphabet, and the words spelt with it alone."""
    points = letters.forms % _CONTINUES
    lengths = np.diff(letters.starts)
    weight = np.zeros(_CODE_POINTS, np.int64)
    np.add.at(weight, points, np.repeat(letters.counts, lengths))
    # White space would be trimmed, or end the line, where vocab.txt is read.
    weight[[point for point in np.flatnonzero(weight) if chr(point).isspace()]] = 0
    occurs = np.flatnonzero(weight)
    ranked = occurs[np.lexsort((occurs, -weight[occurs]))]
    always = (ranked >= ord("!")) & (ranked <= ord("~"))
    others = ranked[~always][: max(limit - np.count_nonzero(always), 0)]
    in_alphabet = np.zeros(_CODE_POINTS, np.bool_)
    in_alphabet[ranked[always]] = True
    in_alphabet[others] = True

    spelt = in_alphabet[points]
    forms = np.unique(letters.forms[spelt])
    left_out = np.concatenate(([0], np.cumsum(~spelt)))[letters.starts]
    kept = (np.diff(left_out) == 0) & (lengths > 0)
    return forms, _Letters(
        forms=letters.forms[np.repeat(kept, lengths)],
        starts=np.concatenate(([0], np.cumsum(lengths[kept]))),
        counts=letters.counts[kept],
    )


def _entry(form: int) -> str:
    return chr(form) if form < _CONTINUES else CONTINUATION + chr(form - _CONTINUES)
