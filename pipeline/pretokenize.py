"""Text to a stream of word numbers: one walk over UTF-8 bytes, in compiled code.

A word is what BertNormalizer and BertPreTokenizer make of a text. Each distinct word gets the
next free number the first time it is met, so counting words and looking their ids up are both
a walk followed by a pass over an array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numba as nb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.normalization import (
    ALONE,
    DROP,
    JOIN,
    MAX_UNITS,
    SEPARATE,
    UNIT_CLASS_SHIFT,
    UNIT_CODE_POINT,
    UNIT_MARK,
    UNITS,
    KernelArrays,
    NormalizationTable,
)

_BLOCK_BYTES = 1 << 22  # text walked at a time: its word numbers stay in the cache
_DONE, _FULL, _REORDER = range(3)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_COUNT, _LANES = 0, 1  # places in WordTable.state


class WordTable(NamedTuple):
    """Open-addressing hash table of words; a word's bytes are packed in 8-byte lanes.

    slots [2 * capacity] uint64 holds (key, length << 32 | number + 1). The key is the lane of a
    word of up to 8 bytes, else a hash of its lanes; then the lanes are compared as well.
    """

    slots: NDArray[np.uint64]
    lane_starts: NDArray[np.int64]
    lengths: NDArray[np.int32]
    lanes: NDArray[np.uint64]
    state: NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WordStream:
    """The words of some rows: numbers int32 [words], row_ends int64 [rows]."""

    numbers: NDArray[np.int32]
    row_ends: NDArray[np.int64]


@nb.njit(cache=True, _nrt=False, inline="always")
def _mix(value: np.uint64) -> np.uint64:
    value *= _MULTIPLIER
    return value ^ (value >> np.uint64(29))


@nb.njit(cache=True, _nrt=False, inline="always")
def _push(word, lane, length, digest, byte):
    lane = (lane << np.uint64(8)) | np.uint64(byte)
    length += 1
    if length & 7 == 0:
        word[(length >> 3) - 1] = lane
        digest = _mix(digest ^ lane)
        lane = np.uint64(0)
    return lane, length, digest


@nb.njit(cache=True, _nrt=False)
def _push_code_point(word, lane, length, digest, point):
    if point < 0x80:
        return _push(word, lane, length, digest, point)
    if point < 0x800:
        lane, length, digest = _push(word, lane, length, digest, 0xC0 | point >> 6)
    else:
        if point < 0x10000:
            lane, length, digest = _push(word, lane, length, digest, 0xE0 | point >> 12)
        else:
            lane, length, digest = _push(word, lane, length, digest, 0xF0 | point >> 18)
            lane, length, digest = _push(word, lane, length, digest, 0x80 | point >> 12 & 0x3F)
        lane, length, digest = _push(word, lane, length, digest, 0x80 | point >> 6 & 0x3F)
    return _push(word, lane, length, digest, 0x80 | point & 0x3F)


@nb.njit(cache=True, _nrt=False, inline="always")
def _intern(slots, lane_starts, lengths, lanes, state, word, lane, length, digest):
    """Return the number of the word in `word` and `lane`, a new one if need be, -1 when full."""
    word_lanes = (length + 7) >> 3
    if length & 7:
        word[word_lanes - 1] = lane
        digest = _mix(digest ^ lane)
    key = word[0] if word_lanes == 1 else digest
    tag = np.uint64(length) << np.uint64(32)
    mask = np.int64((slots.size >> 1) - 1)
    slot = np.int64(_mix(digest ^ tag) >> np.uint64(20)) & mask
    while True:
        entry = slots[2 * slot + 1]
        if entry == 0:
            break
        if slots[2 * slot] == key and (entry >> np.uint64(32)) == np.uint64(length):
            number = np.int64(entry & np.uint64(0xFFFFFFFF)) - 1
            if word_lanes == 1:
                return number
            start = lane_starts[number]
            same = 0
            while same < word_lanes and lanes[start + same] == word[same]:
                same += 1
            if same == word_lanes:
                return number
        slot = (slot + 1) & mask
    number = state[_COUNT]
    start = state[_LANES]
    if number == lengths.size or start + word_lanes > lanes.size:
        return np.int64(-1)
    slots[2 * slot] = key
    slots[2 * slot + 1] = tag | np.uint64(number + 1)
    lane_starts[number] = start
    lengths[number] = length
    for index in range(word_lanes):
        lanes[start + index] = word[index]
    state[_COUNT] = number + 1
    state[_LANES] = start + word_lanes
    return number


@nb.njit(cache=True, _nrt=False, inline="always")
def _emit(slots, lane_starts, lengths, lanes, state, word, lane, length, digest, numbers, count):
    number = _intern(slots, lane_starts, lengths, lanes, state, word, lane, length, digest)
    if number < 0:
        return False
    numbers[count] = number
    return True


@nb.njit(cache=True, _nrt=False)
def _walk(text, offsets, row, in_order, normalization, table, word, numbers, row_ends, count):
    """Walk rows from `row` on; return (status, row reached, words written).

    Stops before a row that finds the table full, or in which marks meet that may have to
    change places; with `in_order` the text is in canonical order already.
    """
    ascii_actions, actions, unit_starts, units = normalization
    slots, lane_starts, lengths, lanes, state = table
    while row < offsets.size - 1:
        row_start = count
        position = offsets[row]
        end = offsets[row + 1]
        lane, length, digest = np.uint64(0), np.int64(0), np.uint64(0)
        after_mark = np.int64(-1)  # length of the word when its last mark was added
        while True:
            if position == end:
                action = np.int64(SEPARATE)
                point = np.int64(0)
                position += 1
            else:
                byte = np.int64(text[position])
                known = np.int64(ascii_actions[byte])
                action = known >> 8
                if action == JOIN:
                    lane, length, digest = _push(word, lane, length, digest, known)
                    position += 1
                    continue
                if byte < 0x80:
                    point = byte
                    position += 1
                elif byte < 0xE0:
                    point = (byte & 0x1F) << 6 | np.int64(text[position + 1]) & 0x3F
                    position += 2
                elif byte < 0xF0:
                    point = (
                        (byte & 0x0F) << 12
                        | (np.int64(text[position + 1]) & 0x3F) << 6
                        | np.int64(text[position + 2]) & 0x3F
                    )
                    position += 3
                else:
                    point = (
                        (byte & 0x07) << 18
                        | (np.int64(text[position + 1]) & 0x3F) << 12
                        | (np.int64(text[position + 2]) & 0x3F) << 6
                        | np.int64(text[position + 3]) & 0x3F
                    )
                    position += 4
                if byte >= 0x80:
                    action = np.int64(actions[point])
            unit = np.int64(0)
            last_unit = np.int64(1)
            if action >= UNITS:
                unit = np.int64(unit_starts[action - UNITS])
                last_unit = np.int64(unit_starts[action - UNITS + 1])
            while unit < last_unit:
                kind = action
                if action >= UNITS:
                    packed = np.int64(units[unit])
                    point = packed & UNIT_CODE_POINT
                    kind = packed >> UNIT_CLASS_SHIFT & 3
                    if packed & UNIT_MARK:
                        if length == after_mark and not in_order:
                            return _REORDER, row, row_start
                        after_mark = length + (2 if point < 0x800 else 3 if point < 0x10000 else 4)
                unit += 1
                if kind == JOIN:
                    lane, length, digest = _push_code_point(word, lane, length, digest, point)
                elif kind != DROP:
                    if length:
                        if not _emit(slots, lane_starts, lengths, lanes, state, word, lane, length, digest, numbers, count):
                            return _FULL, row, row_start
                        count += 1
                        lane, length, digest = np.uint64(0), np.int64(0), np.uint64(0)
                    if kind == ALONE:
                        lane, length, digest = _push_code_point(word, lane, length, digest, point)
                        if not _emit(slots, lane_starts, lengths, lanes, state, word, lane, length, digest, numbers, count):
                            return _FULL, row, row_start
                        count += 1
                        lane, length, digest = np.uint64(0), np.int64(0), np.uint64(0)
            if position > end:
                break
        row_ends[row] = count
        row += 1
    return _DONE, row, count


@nb.njit(cache=True, _nrt=False)
def _add_words(text, offsets, table, word):
    """Add distinct words in the order given; their numbers are their rows."""
    slots, lane_starts, lengths, lanes, state = table
    for row in range(offsets.size - 1):
        lane, length, digest = np.uint64(0), np.int64(0), np.uint64(0)
        for position in range(offsets[row], offsets[row + 1]):
            lane, length, digest = _push(word, lane, length, digest, text[position])
        _intern(slots, lane_starts, lengths, lanes, state, word, lane, length, digest)


@nb.njit(cache=True, _nrt=False)
def _copy_words(old, new, word):
    """Add the words of `old` to the empty, larger table `new` under the same numbers."""
    for number in range(old.state[_COUNT]):
        start = old.lane_starts[number]
        length = np.int64(old.lengths[number])
        whole = length >> 3
        digest = np.uint64(0)
        for index in range(whole):
            word[index] = old.lanes[start + index]
            digest = _mix(digest ^ word[index])
        lane = old.lanes[start + whole] if length & 7 else np.uint64(0)
        _intern(new.slots, new.lane_starts, new.lengths, new.lanes, new.state, word, lane, length, digest)


@nb.njit(cache=True, _nrt=False)
def _unpack(table, first, offsets, text):
    """Write the bytes of words `first`, `first` + 1, ... to text, one after another."""
    for row in range(offsets.size - 1):
        length = np.int64(table.lengths[first + row])
        start = table.lane_starts[first + row]
        for index in range(length):
            in_lane = min(length - (index >> 3 << 3), 8)
            shift = np.uint64((in_lane - 1 - (index & 7)) * 8)
            text[offsets[row] + index] = table.lanes[start + (index >> 3)] >> shift


def text_buffers(text: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the UTF-8 bytes and the int64 [rows + 1] offsets into them, without a copy.

    Raises InputError where a row is null or longer than a word number of bytes can be.
    """
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
        self._table = _empty_table(len(words) + len(words) // 4, lanes + lanes // 4)
        _add_words(text, offsets, self._table, self._word)
        if len(self) != len(words):
            raise InputError(f"words: {len(words)} rows, {len(self)} distinct: a word is repeated")

    def __len__(self) -> int:
        """Return the number of distinct words."""
        return int(self._table.state[_COUNT])

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
        _unpack(self._table, first, offsets, text)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.LargeStringArray.from_buffers(len(offsets) - 1, buffers[1], buffers[2])

    def _walk_block(self, text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> WordStream:
        self._fit_word(offsets)
        # A word has a unit of its own; at most 3 units come of 2 bytes, 1 of an ASCII byte.
        numbers = np.empty(MAX_UNITS * int(offsets[-1] - offsets[0]) // 2 + 1, np.int32)
        row_ends = np.empty(len(offsets) - 1, np.int64)
        row, count = 0, 0
        while True:
            status, row, count = self._run(text, offsets, row, False, numbers, row_ends, count)
            if status == _DONE:
                return WordStream(numbers=numbers[:count], row_ends=row_ends)
            if status == _REORDER:
                source = text[offsets[row] : offsets[row + 1]].tobytes().decode()
                ordered = self._normalizer.normalize_str(source).encode()
                piece = np.frombuffer(ordered, np.uint8)
                ends = row_ends[row : row + 1]
                bounds = np.array([0, piece.size])
                bounds.flags.writeable = False
                self._fit_word(bounds)
                status, done, count = self._run(piece, bounds, 0, True, numbers, ends, count)
                row += done
            if status == _FULL:
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
        status, row, count = _walk(
            text,
            offsets,
            row,
            in_order,
            self._arrays,
            self._table,
            self._word,
            numbers,
            row_ends,
            count,
        )
        return status, row, count

    def _fit_word(self, offsets: NDArray[np.int64]) -> None:
        lanes = MAX_UNITS * int(np.diff(offsets).max(initial=0)) // 8 + 1
        if self._word.size < lanes:
            self._word = np.empty(lanes, np.uint64)

    def _grow(self) -> None:
        old = self._table
        self._table = _empty_table(2 * old.lengths.size, 2 * old.lanes.size + self._word.size)
        _copy_words(old, self._table, self._word)


def _empty_table(words: int, lanes: int) -> WordTable:
    capacity = 1 << max(words - 1, 1023).bit_length()
    return WordTable(
        slots=np.zeros(4 * capacity, np.uint64),
        lane_starts=np.empty(capacity, np.int64),
        lengths=np.empty(capacity, np.int32),
        lanes=np.empty(max(lanes, 1024), np.uint64),
        state=np.zeros(2, np.int64),
    )
