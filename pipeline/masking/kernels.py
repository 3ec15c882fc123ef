"""The compiled loops of masking: find an instance's units, choose some, replace their tokens."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.keyed_random import below, draw, philox

# An instance's draws: those from 0 choose its units, one each; those from 2**30 are the lengths
# of its n-grams or spans; those from 2**31 replace its chosen tokens, two each.
_FIRST_LENGTH = 1 << 30
_REPLACEMENT_BLOCK = np.uint32((1 << 31) // 4)


@nb.njit(cache=True, nogil=True)
def mask_rows(
    input_ids: NDArray[Any],
    offsets: NDArray[np.int64],
    instance_numbers: NDArray[np.uint64],
    key: np.uint64,
    stream: np.uint32,
    probability: float,
    unit_threshold: np.uint64,
    whole_word: bool,
    thresholds: NDArray[np.uint64],
    exact: bool,
    limit: np.int64,
    mask_threshold: np.uint64,
    random_threshold: np.uint64,
    maskable: NDArray[np.bool_],
    continuation: NDArray[np.bool_],
    word_starts: NDArray[np.bool_],
    random_ids: NDArray[np.uint32],
    mask_id: np.uint32,
    corrupted: NDArray[Any],
    positions: NDArray[np.int64],
    row_offsets: NDArray[np.int64],
) -> int:
    """Fill `corrupted`, `positions` and `row_offsets`; return the number of positions."""
    longest = 0
    for row in range(instance_numbers.size):
        longest = max(longest, offsets[row + 1] - offsets[row])
    unit_starts = np.empty(longest, dtype=np.int64)
    unit_ends = np.empty(longest, dtype=np.int64)
    order = np.empty(longest if thresholds.size else 0, dtype=np.int64)
    is_chosen = np.zeros(longest, dtype=np.bool_)

    written = 0
    for row in range(instance_numbers.size):
        begin = offsets[row]
        length = offsets[row + 1] - begin
        identity = instance_numbers[row]
        row_ids = input_ids[begin : begin + length]
        units, candidates = _find_units(
            row_ids,
            whole_word,
            word_starts[begin : begin + length],
            maskable,
            continuation,
            unit_starts,
            unit_ends,
        )
        budget = min(max(int(probability * candidates + 0.5), 1), limit)
        if thresholds.size:
            _choose_runs(
                units,
                budget,
                key,
                stream,
                identity,
                thresholds,
                unit_starts,
                unit_ends,
                order,
                is_chosen,
            )
        elif exact:
            _choose_exactly(units, budget, key, stream, identity, unit_starts, unit_ends, is_chosen)
        else:
            _choose_each(
                units, unit_threshold, key, stream, identity, unit_starts, unit_ends, is_chosen
            )

        first = written
        words = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
        for token in range(length):
            if not is_chosen[token]:
                continue
            is_chosen[token] = False
            ordinal = written - first
            if ordinal & 1 == 0:
                block = np.uint32(_REPLACEMENT_BLOCK + np.uint32(ordinal >> 1))
                words = philox(key, block, stream, identity)
                kind = words[0]
                which = words[1]
            else:
                kind = words[2]
                which = words[3]
            if np.uint64(kind) < mask_threshold:
                corrupted[begin + token] = mask_id
            elif np.uint64(kind) < random_threshold:
                corrupted[begin + token] = random_ids[below(which, np.uint32(random_ids.size))]
            positions[written] = begin + token
            written += 1
        row_offsets[row + 1] = written
    return written


@nb.njit(cache=True, nogil=True)
def _find_units(
    row_ids: NDArray[Any],
    whole_word: bool,
    word_starts: NDArray[np.bool_],
    maskable: NDArray[np.bool_],
    continuation: NDArray[np.bool_],
    unit_starts: NDArray[np.int64],
    unit_ends: NDArray[np.int64],
) -> tuple[int, int]:
    """Fill the units' spans within the row; return how many, and their tokens.

    Where there are flags of the row's tokens, they tell which begin a word, else ## does.
    """
    flagged = word_starts.size > 0
    units = 0
    candidates = 0
    inside = False
    for token in range(row_ids.size):
        if not maskable[row_ids[token]]:
            inside = False
            continue
        candidates += 1
        goes_on = not word_starts[token] if flagged else continuation[row_ids[token]]
        if whole_word and inside and goes_on:
            unit_ends[units - 1] = token + 1
        else:
            unit_starts[units] = token
            unit_ends[units] = token + 1
            units += 1
            inside = True
    return units, candidates


@nb.njit(cache=True, nogil=True)
def _choose_runs(
    units: int,
    budget: int,
    key: np.uint64,
    stream: np.uint32,
    identity: np.uint64,
    thresholds: NDArray[np.uint64],
    unit_starts: NDArray[np.int64],
    unit_ends: NDArray[np.int64],
    order: NDArray[np.int64],
    is_chosen: NDArray[np.bool_],
) -> None:
    """Draw words without replacement, and from each the words after it, for the budget.

    Every word is drawn at some time, so what is left of the budget no word fits into.
    """
    left = budget
    for unit in range(units):
        order[unit] = unit
    words = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
    for drawn in range(units):
        if left == 0:
            return
        if drawn & 3 == 0:
            words = philox(key, np.uint32(drawn >> 2), stream, identity)
        other = drawn + np.int64(below(words[drawn & 3], np.uint32(units - drawn)))
        unit = order[other]
        order[other] = order[drawn]
        order[drawn] = unit
        if is_chosen[unit_starts[unit]]:
            continue
        word = np.uint64(draw(key, np.uint32(_FIRST_LENGTH + drawn), stream, identity))
        last = unit
        while word >= thresholds[last - unit]:
            last += 1
        last = min(last, units - 1)
        for member in range(unit, last + 1):
            start = unit_starts[member]
            end = unit_ends[member]
            apart = member > unit and unit_ends[member - 1] != start
            if apart or is_chosen[start] or end - start > left:
                break
            is_chosen[start:end] = True
            left -= end - start
    if units > 0 and left == budget:
        unit = order[0]
        is_chosen[unit_starts[unit] : unit_ends[unit]] = True


@nb.njit(cache=True, nogil=True)
def _choose_exactly(
    units: int,
    budget: int,
    key: np.uint64,
    stream: np.uint32,
    identity: np.uint64,
    unit_starts: NDArray[np.int64],
    unit_ends: NDArray[np.int64],
    is_chosen: NDArray[np.bool_],
) -> None:
    """Draw units without replacement (Fisher-Yates, stopped early) until the budget is spent."""
    left = budget
    words = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
    for drawn in range(units):
        if left == 0:
            return
        if drawn & 3 == 0:
            words = philox(key, np.uint32(drawn >> 2), stream, identity)
        other = drawn + np.int64(below(words[drawn & 3], np.uint32(units - drawn)))
        start = unit_starts[other]
        end = unit_ends[other]
        unit_starts[other] = unit_starts[drawn]
        unit_ends[other] = unit_ends[drawn]
        unit_starts[drawn] = start
        unit_ends[drawn] = end
        if end - start <= left:
            is_chosen[start:end] = True
            left -= end - start
    if units > 0 and left == budget:
        is_chosen[unit_starts[0] : unit_ends[0]] = True


@nb.njit(cache=True, nogil=True)
def _choose_each(
    units: int,
    threshold: np.uint64,
    key: np.uint64,
    stream: np.uint32,
    identity: np.uint64,
    unit_starts: NDArray[np.int64],
    unit_ends: NDArray[np.int64],
    is_chosen: NDArray[np.bool_],
) -> None:
    """Draw each unit by itself."""
    words = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
    for drawn in range(units):
        if drawn & 3 == 0:
            words = philox(key, np.uint32(drawn >> 2), stream, identity)
        if np.uint64(words[drawn & 3]) < threshold:
            is_chosen[unit_starts[drawn] : unit_ends[drawn]] = True
