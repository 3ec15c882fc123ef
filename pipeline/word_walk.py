"""The kernels that walk UTF-8 bytes and number the words they meet.

All in one file, so that numba's cache notices a change in any of them. They allocate nothing,
so they do without reference counts (_nrt=False): counting cost four fifths of the time.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.normalization import (
    ALONE,
    DROP,
    JOIN,
    SEPARATE,
    UNIT_CLASS_SHIFT,
    UNIT_CODE_POINT,
    UNIT_MARK,
    UNITS,
    KernelArrays,
)
from pipeline.utf8 import decode

Integer = int | np.int64

DONE, FULL, REORDER = range(3)  # how a walk ended
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
COUNT, _LANES = 0, 1  # places in WordTable.state


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


def empty_table(words: int, lanes: int) -> WordTable:
    """Return a table with room for that many words and lanes at least."""
    capacity = 1 << max(words - 1, 1023).bit_length()
    return WordTable(
        slots=np.zeros(4 * capacity, np.uint64),
        lane_starts=np.empty(capacity, np.int64),
        lengths=np.empty(capacity, np.int32),
        lanes=np.empty(max(lanes, 1024), np.uint64),
        state=np.zeros(2, np.int64),
    )


@nb.njit(cache=True, _nrt=False, inline="always")
def _mix(value: np.uint64) -> np.uint64:
    value *= _MULTIPLIER
    return value ^ (value >> np.uint64(29))


@nb.njit(cache=True, _nrt=False, inline="always")
def _push(
    word: NDArray[np.uint64], lane: np.uint64, length: Integer, digest: np.uint64, byte: Integer
) -> tuple[np.uint64, Integer, np.uint64]:
    """Append a byte; a full lane goes to `word` and into the digest."""
    lane = (lane << np.uint64(8)) | np.uint64(byte)
    length += 1
    if length & 7 == 0:
        word[(length >> 3) - 1] = lane
        digest = _mix(digest ^ lane)
        lane = np.uint64(0)
    return lane, length, digest


@nb.njit(cache=True, _nrt=False)
def _push_code_point(
    word: NDArray[np.uint64], lane: np.uint64, length: Integer, digest: np.uint64, point: Integer
) -> tuple[np.uint64, Integer, np.uint64]:
    last = point
    if point >= 0x80:
        if point < 0x800:
            lane, length, digest = _push(word, lane, length, digest, 0xC0 | point >> 6)
        else:
            if point < 0x10000:
                lane, length, digest = _push(word, lane, length, digest, 0xE0 | point >> 12)
            else:
                lane, length, digest = _push(word, lane, length, digest, 0xF0 | point >> 18)
                middle = 0x80 | point >> 12 & 0x3F
                lane, length, digest = _push(word, lane, length, digest, middle)
            lane, length, digest = _push(word, lane, length, digest, 0x80 | point >> 6 & 0x3F)
        last = 0x80 | point & 0x3F
    lane, length, digest = _push(word, lane, length, digest, last)
    return lane, length, digest


@nb.njit(cache=True, _nrt=False, inline="always")
def _intern(
    slots: NDArray[np.uint64],
    lane_starts: NDArray[np.int64],
    lengths: NDArray[np.int32],
    lanes: NDArray[np.uint64],
    state: NDArray[np.int64],
    word: NDArray[np.uint64],
    lane: np.uint64,
    length: Integer,
    digest: np.uint64,
) -> Integer:
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
            number: Integer = np.int64(entry & np.uint64(0xFFFFFFFF)) - 1
            if word_lanes == 1:
                return number
            start = lane_starts[number]
            same = 0
            while same < word_lanes and lanes[start + same] == word[same]:
                same += 1
            if same == word_lanes:
                return number
        slot = (slot + 1) & mask
    number = state[COUNT]
    start = state[_LANES]
    if number == lengths.size or start + word_lanes > lanes.size:
        return np.int64(-1)
    slots[2 * slot] = key
    slots[2 * slot + 1] = tag | np.uint64(number + 1)
    lane_starts[number] = start
    lengths[number] = length
    for index in range(word_lanes):
        lanes[start + index] = word[index]
    state[COUNT] = number + 1
    state[_LANES] = start + word_lanes
    return number


@nb.njit(cache=True, _nrt=False, inline="always")
def _emit(
    slots: NDArray[np.uint64],
    lane_starts: NDArray[np.int64],
    lengths: NDArray[np.int32],
    lanes: NDArray[np.uint64],
    state: NDArray[np.int64],
    word: NDArray[np.uint64],
    lane: np.uint64,
    length: Integer,
    digest: np.uint64,
    numbers: NDArray[np.int32],
    count: Integer,
) -> bool:
    number = _intern(slots, lane_starts, lengths, lanes, state, word, lane, length, digest)
    if number < 0:
        return False
    numbers[count] = number
    return True


@nb.njit(cache=True, _nrt=False)
def walk(
    text: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    row: Integer,
    in_order: bool,
    normalization: KernelArrays,
    table: WordTable,
    word: NDArray[np.uint64],
    numbers: NDArray[np.int32],
    row_ends: NDArray[np.int64],
    count: Integer,
) -> tuple[Integer, Integer, Integer]:
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
                point, size = decode(text, position)
                position += size
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
                            return REORDER, row, row_start
                        after_mark = length + (2 if point < 0x800 else 3 if point < 0x10000 else 4)
                unit += 1
                if kind == JOIN:
                    lane, length, digest = _push_code_point(word, lane, length, digest, point)
                elif kind != DROP:
                    if length:
                        if not _emit(
                            slots,
                            lane_starts,
                            lengths,
                            lanes,
                            state,
                            word,
                            lane,
                            length,
                            digest,
                            numbers,
                            count,
                        ):
                            return FULL, row, row_start
                        count += 1
                        lane, length, digest = np.uint64(0), np.int64(0), np.uint64(0)
                    if kind == ALONE:
                        lane, length, digest = _push_code_point(word, lane, length, digest, point)
                        if not _emit(
                            slots,
                            lane_starts,
                            lengths,
                            lanes,
                            state,
                            word,
                            lane,
                            length,
                            digest,
                            numbers,
                            count,
                        ):
                            return FULL, row, row_start
                        count += 1
                        lane, length, digest = np.uint64(0), np.int64(0), np.uint64(0)
            if position > end:
                break
        row_ends[row] = count
        row += 1
    return DONE, row, count


@nb.njit(cache=True, _nrt=False)
def add_words(
    text: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    table: WordTable,
    word: NDArray[np.uint64],
) -> None:
    """Add distinct words in the order given; their numbers are their rows."""
    slots, lane_starts, lengths, lanes, state = table
    for row in range(offsets.size - 1):
        lane, length, digest = np.uint64(0), np.int64(0), np.uint64(0)
        for position in range(offsets[row], offsets[row + 1]):
            lane, length, digest = _push(word, lane, length, digest, text[position])
        _intern(slots, lane_starts, lengths, lanes, state, word, lane, length, digest)


@nb.njit(cache=True, _nrt=False)
def copy_words(old: WordTable, new: WordTable, word: NDArray[np.uint64]) -> None:
    """Add the words of `old` to the empty, larger table `new` under the same numbers."""
    for number in range(old.state[COUNT]):
        start = old.lane_starts[number]
        length = np.int64(old.lengths[number])
        whole = length >> 3
        digest = np.uint64(0)
        for index in range(whole):
            word[index] = old.lanes[start + index]
            digest = _mix(digest ^ word[index])
        lane = old.lanes[start + whole] if length & 7 else np.uint64(0)
        _intern(
            new.slots,
            new.lane_starts,
            new.lengths,
            new.lanes,
            new.state,
            word,
            lane,
            length,
            digest,
        )


@nb.njit(cache=True, _nrt=False)
def unpack(
    table: WordTable, first: Integer, offsets: NDArray[np.int64], text: NDArray[np.uint8]
) -> None:
    """Write the bytes of words `first`, `first` + 1, ... to text, one after another."""
    for row in range(offsets.size - 1):
        length = np.int64(table.lengths[first + row])
        start = table.lane_starts[first + row]
        for index in range(length):
            in_lane = min(np.int64(8), length - (index >> 3 << 3))
            shift = np.uint64((in_lane - 1 - (index & 7)) * 8)
            text[offsets[row] + index] = table.lanes[start + (index >> 3)] >> shift
