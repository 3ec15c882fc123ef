"""The most frequent pair first.

The heap is lazy: an entry whose count has fallen since is put back with the count it has (a
count that rises gets a new entry at once, so no pair is ever ranked too low).
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.vocabulary.pair_counts import (
    HEAP,
    MERGES,
    TOUCHED,
    Integer,
    PairCounts,
    Pairs,
    longer,
)


class _Heap(NamedTuple):
    counts: NDArray[np.int64]
    pairs: NDArray[np.int32]


@nb.njit(cache=True, _nrt=False, inline="always")
def _precedes(count: Integer, key: Integer, other_count: Integer, other_key: Integer) -> bool:
    return bool(count > other_count or (count == other_count and key < other_key))


@nb.njit(cache=True, _nrt=False)
def _sift_down(
    heap: _Heap, keys: NDArray[np.int64], size: Integer, count: Integer, pair: Integer
) -> None:
    """Put (count, pair) at the root of a heap of `size` entries whose root is vacant."""
    counts, numbers = heap
    place = np.int64(0)
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and _precedes(
            counts[other], keys[numbers[other]], counts[child], keys[numbers[child]]
        ):
            child = other
        if not _precedes(counts[child], keys[numbers[child]], count, keys[pair]):
            break
        counts[place] = counts[child]
        numbers[place] = numbers[child]
        place = child
    counts[place] = count
    numbers[place] = pair


@nb.njit(cache=True, _nrt=False)
def _pop(heap: _Heap, pairs: Pairs, min_count: Integer) -> Integer:
    """Return the most frequent pair of at least `min_count`, -1 where there is none."""
    state = pairs.state
    while state[HEAP] > 0:
        count = heap.counts[0]
        pair = np.int64(heap.pairs[0])
        now = pairs.counts[pair]
        if now < count and now >= min_count:
            _sift_down(heap, pairs.keys, state[HEAP], now, pair)
            continue
        state[HEAP] -= 1
        last = state[HEAP]
        _sift_down(heap, pairs.keys, last, heap.counts[last], np.int64(heap.pairs[last]))
        if now == count:
            return pair
    return np.int64(-1)


@nb.njit(cache=True, _nrt=False)
def _push_touched(heap: _Heap, pairs: Pairs, min_count: Integer) -> None:
    counts, numbers = heap
    state = pairs.state
    for index in range(state[TOUCHED]):
        pair = np.int64(pairs.touched[index])
        count = pairs.counts[pair]
        if count < min_count:
            continue
        place = state[HEAP]
        state[HEAP] += 1
        while place > 0:
            parent = (place - 1) >> 1
            key = pairs.keys[numbers[parent]]
            if not _precedes(count, pairs.keys[pair], counts[parent], key):
                break
            counts[place] = counts[parent]
            numbers[place] = numbers[parent]
            place = parent
        counts[place] = count
        numbers[place] = pair
    state[TOUCHED] = 0
    state[MERGES] += 1


class PairQueue:
    """Hands out the most frequent pair of adjacent ids, and merges it wherever it stands."""

    def __init__(self, counts: PairCounts, min_count: int) -> None:
        """Take pairs of which nothing was merged yet; rarer ones are not handed out."""
        self._counts = counts
        self._min_count = min_count
        self._heap = _Heap(np.empty(0, np.int64), np.empty(0, np.int32))
        self._queue_touched()

    def pop(self) -> tuple[int, int] | None:
        """Return (left, right) of the most frequent pair; of equals the smallest ids."""
        pair = _pop(self._heap, self._counts.pairs, self._min_count)
        if pair < 0:
            return None
        key = int(self._counts.pairs.keys[pair])
        return key >> 32, key & 0xFFFFFFFF

    def merge(self, left: int, right: int, merged: int) -> None:
        """Replace each (left, right), from the left of a word, by the id `merged`."""
        self._counts.merge(left, right, merged)
        self._queue_touched()

    def _queue_touched(self) -> None:
        pairs = self._counts.pairs
        needed = int(pairs.state[HEAP] + pairs.state[TOUCHED])
        if needed > len(self._heap.counts):
            counts, numbers = self._heap
            self._heap = _Heap(longer(counts, needed), longer(numbers, needed))
        _push_touched(self._heap, pairs, self._min_count)
