"""Which tokens begin a word, where `##` cannot tell: languages that ICU segments by dictionary.

In Chinese every ideograph is a token of its own, and in Thai or kana a run without spaces is one
pre-token; a word is what ICU's word breaker says. Tokens are not changed: a boundary inside of a
token is passed over, so that the token belongs to the word that it begins in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba as nb
import numpy as np
import pyarrow as pa
from icu4py.breakers import WordBreaker
from numpy.typing import NDArray

from pipeline.normalization import (
    ALONE,
    DROP,
    JOIN,
    SEPARATE,
    UNIT_CLASS_SHIFT,
    UNITS,
    NormalizationTable,
)
from pipeline.ragged import Ids, read_only

# ICU has dictionaries of these; every other language puts spaces between its words.
DICTIONARY_LANGUAGES = frozenset({"zh", "yue", "ja", "th", "lo", "km", "my"})

_CONTINUATION_PREFIX = "##"
_WINDOW_CHARACTERS = 1 << 16


def is_segmented(locale: str) -> bool:
    """Return whether words of a BCP 47 locale are found by a dictionary."""
    return locale.replace("_", "-").split("-")[0].lower() in DICTIONARY_LANGUAGES


def find_word_starts(
    sentences: pa.LargeStringArray,
    ids: Ids,
    offsets: NDArray[np.int64],
    *,
    locale: str,
    vocabulary: Sequence[str],
    unk_id: int,
    normalization: NormalizationTable,
) -> NDArray[np.bool_]:
    """Return bool [T], True where a token is the first one that begins in its ICU word.

    `ids` [T] and `offsets` int64 [S + 1] are the encoder's answer to `sentences`, of the
    vocabulary (in id order) and the normalization it was made with.

    Raises ValueError where the ids are not those of the sentences.
    """
    found = [np.zeros(0, dtype=np.bool_)]
    lengths = np.array([_characters(entry) for entry in vocabulary], dtype=np.int32)
    arrays = normalization.arrays
    first = 0
    for texts in _windows(sentences):
        code_points, ends, boundaries = _boundaries(texts, locale)
        last = first + len(texts)
        starts = np.zeros(int(offsets[last] - offsets[first]), dtype=np.bool_)
        aligned = _mark(
            code_points,
            ends,
            boundaries,
            read_only(ids[offsets[first] : offsets[last]]),
            offsets[first : last + 1] - offsets[first],
            lengths,
            np.int64(unk_id),
            arrays.actions,
            arrays.unit_starts,
            arrays.units,
            starts,
        )
        if aligned < len(texts):
            raise ValueError(
                f"sentence {first + aligned}: its ids are not what the vocabulary and the "
                "normalization make of its text"
            )
        found.append(starts)
        first = last
    return np.concatenate(found)


def _characters(entry: str) -> int:
    """Return how many characters of text an entry stands for."""
    is_piece = entry.startswith(_CONTINUATION_PREFIX) and len(entry) > len(_CONTINUATION_PREFIX)
    return len(entry) - len(_CONTINUATION_PREFIX) * is_piece


def _windows(sentences: pa.LargeStringArray) -> Any:
    """Yield runs of sentences of about _WINDOW_CHARACTERS, as lists of strings."""
    texts: list[str] = []
    size = 0
    for text in sentences.to_pylist():
        texts.append(text)
        size += len(text)
        if size >= _WINDOW_CHARACTERS:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


def _boundaries(
    texts: Sequence[str], locale: str
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the texts' code points, where each text ends, and where an ICU word begins."""
    # A line feed is a boundary whatever stands around it, so that one call serves many texts.
    joined = "\n".join([*texts, ""])
    code_points = np.frombuffer(joined.encode("utf-32-le"), dtype=np.uint32)
    ends = np.cumsum([len(text) + 1 for text in texts], dtype=np.int64)
    units = np.ones(code_points.size, dtype=np.int64)
    units[code_points > 0xFFFF] = 2  # ICU counts in UTF-16
    unit_starts = np.cumsum(units) - units
    is_start = np.zeros(int(units.sum()) + 1, dtype=np.bool_)
    segments = np.array(list(WordBreaker(joined, locale).segments()), dtype=np.int64)
    is_start[segments.reshape(-1, 2)[:, 0]] = True
    return code_points, ends, is_start[unit_starts]


@nb.njit(cache=True, nogil=True)
def _mark(
    code_points: NDArray[np.uint32],
    ends: NDArray[np.int64],
    boundaries: NDArray[np.bool_],
    ids: NDArray[Any],
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int32],
    unk_id: np.int64,
    actions: NDArray[np.int32],
    unit_starts: NDArray[np.int32],
    units: NDArray[np.uint32],
    starts: NDArray[np.bool_],
) -> int:
    """Fill `starts`, sentence by sentence; return how many sentences were aligned.

    Both texts and tokens are walked by normalised characters: a token takes as many as its
    entry has, [UNK] all that is left of its pre-token.
    """
    position = 0
    for sentence in range(ends.size):
        token = offsets[sentence]
        end = offsets[sentence + 1]
        left = np.int64(0)  # characters of the current token still to come; -1: a whole pre-token
        boundary = True
        while position < ends[sentence]:
            boundary = boundary or boundaries[position]
            action = np.int64(actions[code_points[position]])
            position += 1
            unit = np.int64(0)
            last_unit = np.int64(1)
            if action >= UNITS:
                unit = np.int64(unit_starts[action - UNITS])
                last_unit = np.int64(unit_starts[action - UNITS + 1])
            while unit < last_unit:
                kind = action
                if action >= UNITS:
                    kind = np.int64(units[unit]) >> UNIT_CLASS_SHIFT & 3
                unit += 1
                if kind == DROP:
                    continue
                if kind in (SEPARATE, ALONE):
                    if left > 0:
                        return sentence
                    left = np.int64(0)
                if kind in (JOIN, ALONE):
                    if left == 0:
                        if token == end:
                            return sentence
                        starts[token] = boundary
                        left = np.int64(-1 if ids[token] == unk_id else lengths[ids[token]])
                        token += 1
                    boundary = False
                    if left > 0:
                        left -= 1
                if kind == ALONE:
                    if left > 0:
                        return sentence
                    left = np.int64(0)
        if token != end or left > 0:
            return sentence
    return ends.size
