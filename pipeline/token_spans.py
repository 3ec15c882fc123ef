"""Where in the original text each token lies: a second walk, taken on request.

A character of a word comes from one code point of the text, and a token from as many characters
as its entry has; [UNK] stands for a whole word. So the spans are those of the tokenizers library:
what the normaliser drops (controls, accents that are code points of their own) is within a span
only where characters on both sides of it are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.normalization import (
    ALONE,
    DROP,
    JOIN,
    SEPARATE,
    UNIT_CLASS_SHIFT,
    UNITS,
    KernelArrays,
)
from pipeline.utf8 import decode
from pipeline.word_pieces import TokenIds

Integer = int | np.int64

_WHOLE_WORD = np.int32((1 << 31) - 1)
_CONTINUATION = "##"


def piece_lengths(entries: Mapping[str, int], unknown: str = "[UNK]") -> NDArray[np.int32]:
    """Return int32 [ids]: characters of a word that each token stands for."""
    lengths = np.zeros(1 + max(entries.values()), np.int32)
    for entry, number in entries.items():
        lengths[number] = len(entry.removeprefix(_CONTINUATION)) or len(entry)
    lengths[entries[unknown]] = _WHOLE_WORD
    return lengths


@nb.njit(cache=True, _nrt=False)
def token_spans(
    text: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    passed_over: NDArray[np.bool_],
    normalization: KernelArrays,
    ids: TokenIds,
    row_ends: NDArray[np.int64],
    lengths: NDArray[np.int32],
    spans: NDArray[np.int32],
) -> None:
    """Write to spans [tokens, 2] the bytes of each token, counted from the start of its row.

    `ids` and `row_ends` are those of the rows that `offsets` [rows + 1] cut from `text`; the
    tokens of rows `passed_over` are left alone.
    """
    _, actions, unit_starts, units = normalization
    for row in range(offsets.size - 1):
        if passed_over[row]:
            continue
        token = row_ends[row - 1] if row else np.int64(0)
        left = np.int64(0)  # characters that the open token still needs; 0: none is open
        position = offsets[row]
        while position < offsets[row + 1]:
            begin = position
            point, size = decode(text, position)
            position += size
            action = np.int64(actions[point])
            unit = np.int64(0)
            last_unit = np.int64(1)
            if action >= UNITS:
                unit = np.int64(unit_starts[action - UNITS])
                last_unit = np.int64(unit_starts[action - UNITS + 1])
            while unit < last_unit:
                kind = action if action < UNITS else np.int64(units[unit]) >> UNIT_CLASS_SHIFT & 3
                unit += 1
                if kind == DROP:
                    continue
                if kind != JOIN and left > 0:  # [UNK], whose word ends here
                    token += 1
                    left = np.int64(0)
                if kind != SEPARATE:
                    if left == 0:
                        spans[token, 0] = begin - offsets[row]
                        left = np.int64(lengths[ids[token]])
                    spans[token, 1] = position - offsets[row]
                    left -= 1
                    if left == 0 or kind == ALONE:
                        token += 1
                        left = np.int64(0)
