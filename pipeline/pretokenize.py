"""Text to a stream of word numbers, in one walk over its UTF-8 bytes.

A word is what BertNormalizer and BertPreTokenizer make of a text. Each distinct word gets the
next free number the first time it is met, so counting words and looking their ids up are both
a walk followed by a pass over an array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from pipeline.errors import InputError
from pipeline.normalization import MAX_UNITS, KernelArrays, NormalizationTable, TextRules
from pipeline.word_walk import (
    COUNT,
    DONE,
    FULL,
    REORDER,
    add_words,
    copy_words,
    empty_table,
    unpack,
    walk,
)

_BLOCK_BYTES = 1 << 22  # text walked at a time: its word numbers stay in the cache


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WordStream:
    """The words of some rows: numbers int32 [words], row_ends int64 [rows].

    `reordered` are the rows that the library normalised, as marks in them may change places.
    """

    numbers: NDArray[np.int32]
    row_ends: NDArray[np.int64]
    reordered: list[int]


def text_buffers(text: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the UTF-8 bytes and the int64 [rows + 1] offsets into them, without a copy.

    Raises TypeError for another type, InputError where a row is null or longer than a word number
    of bytes can be.
    """
    if text.type != pa.large_string():  # other offsets would be taken for 64-bit ones
        raise TypeError(f"text: {text.type}: must be large_string")
    if text.null_count:
        row = text.is_null().to_pylist().index(True)
        raise InputError(f"text: row {row} is null: a row must be a string")
    _, offset_buffer, data = text.buffers()
    offsets = np.zeros(1, np.int64)
    if len(text):
        offsets = np.frombuffer(offset_buffer, np.int64, len(text) + 1, 8 * text.offset)
    values = np.frombuffer(b"" if data is None else data, np.uint8)
    longest = int(np.diff(offsets).max(initial=0))
    if longest >= (1 << 31) // MAX_UNITS:
        raise InputError(f"text: a row of {longest} bytes: split it to less than 700 MB")
    values.flags.writeable = False
    offsets.flags.writeable = False
    return values, offsets


def words_of(text: str, rules: TextRules) -> list[str]:
    """Return the words of one text, as the tokenizers library gives them."""
    normalized = rules.normalizer().normalize_str(text)
    found = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalized)
    return [word for word, _ in found]


class WordInterner:
    """The distinct words met so far, numbered from 0 in the order they were met."""

    def __init__(self, normalization: NormalizationTable, words: pa.LargeStringArray) -> None:
        """Start with distinct `words`, numbered as they stand."""
        self._arrays: KernelArrays = normalization.arrays
        self._normalizer = normalization.rules.normalizer()
        text, offsets = text_buffers(words)
        lengths = np.diff(offsets)
        self._word = np.empty(int(lengths.max(initial=0)) // 8 + 1, np.uint64)
        lanes = int(((lengths + 7) >> 3).sum())
        self._table = empty_table(len(words) + len(words) // 4, lanes + lanes // 4)
        add_words(text, offsets, self._table, self._word)
        if len(self) != len(words):
            raise InputError(f"words: {len(words)} rows, {len(self)} distinct: a word is repeated")

    def __len__(self) -> int:
        """Return the number of distinct words."""
        return int(self._table.state[COUNT])

    @property
    def nbytes(self) -> int:
        """Return the memory of the table in bytes."""
        return sum(array.nbytes for array in self._table)

    def walk(self, text: pa.LargeStringArray) -> Iterator[WordStream]:
        """Yield the words of successive runs of rows of `text`, adding new ones on the way."""
        values, offsets = text_buffers(text)
        first = 0
        while first < len(text):
            limit = offsets[first] + _BLOCK_BYTES
            last = max(int(np.searchsorted(offsets, limit, "right")) - 1, first + 1)
            yield self._walk_block(values, offsets[first : last + 1])
            first = last

    def words(self, first: int = 0) -> pa.LargeStringArray:
        """Return the words from number `first` on."""
        offsets = np.zeros(len(self) - first + 1, np.int64)
        np.cumsum(self._table.lengths[first : len(self)], out=offsets[1:])
        text = np.empty(int(offsets[-1]), np.uint8)
        unpack(self._table, first, offsets, text)
        return pa.LargeStringArray.from_buffers(
            len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(text)
        )

    def _walk_block(self, text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> WordStream:
        self._fit_word(offsets)
        # A word has a unit of its own; at most 3 units come of 2 bytes, 1 of an ASCII byte.
        numbers = np.empty(MAX_UNITS * int(offsets[-1] - offsets[0]) // 2 + 1, np.int32)
        row_ends = np.empty(len(offsets) - 1, np.int64)
        reordered: list[int] = []
        row, count = 0, 0
        while True:
            status, row, count = self._run(text, offsets, row, False, numbers, row_ends, count)
            if status == DONE:
                return WordStream(numbers=numbers[:count], row_ends=row_ends, reordered=reordered)
            if status == REORDER:
                # The library's own text of this row; the table keeps normalised text as it is.
                source = text[offsets[row] : offsets[row + 1]].tobytes().decode()
                ordered = pa.array([self._normalizer.normalize_str(source)], pa.large_string())
                one_text, one_offsets = text_buffers(ordered)
                self._fit_word(one_offsets)
                ends = row_ends[row : row + 1]
                status, done, count = self._run(
                    one_text, one_offsets, 0, True, numbers, ends, count
                )
                if done:
                    reordered.append(row)
                row += done
            if status == FULL:
                self._grow()

    def _run(
        self,
        text: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        row: int,
        in_order: bool,
        numbers: NDArray[np.int32],
        row_ends: NDArray[np.int64],
        count: int,
    ) -> tuple[int, int, int]:
        arrays, table, word = self._arrays, self._table, self._word
        ended: tuple[int, int, int] = walk(
            text, offsets, row, in_order, arrays, table, word, numbers, row_ends, count
        )
        return ended

    def _fit_word(self, offsets: NDArray[np.int64]) -> None:
        lanes = MAX_UNITS * int(np.diff(offsets).max(initial=0)) // 8 + 1
        if self._word.size < lanes:
            self._word = np.empty(lanes, np.uint64)

    def _grow(self) -> None:
        old = self._table
        self._table = empty_table(2 * old.lengths.size, 2 * old.lanes.size + self._word.size)
        copy_words(old, self._table, self._word)
