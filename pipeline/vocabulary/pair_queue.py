"""Adjacent pairs of pieces in words, the most frequent first, kept up to date over merges.

Words are runs of an int32 array, shortened in place. Each pair has its int64 count and a list
of the words it was seen in, so that a merge touches those words only; the heap is lazy: an
entry whose count has fallen since is put back with the count it has (a count that rises gets a
new entry at once, so no pair is ever ranked too low).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

Integer = int | np.int64

_PAIRS, _NODES, _FREE, _TOUCHED, _HEAP, _MERGES = range(6)  # places in state


class _Words(NamedTuple):
    symbols: NDArray[np.int32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int32]
    counts: NDArray[np.int64]


class _Pairs(NamedTuple):
    """Pairs by number: key = left id << 32 | right id, found over an open-addressing table."""

    slots: NDArray[np.int32]
    keys: NDArray[np.int64]
    counts: NDArray[np.int64]
    first_nodes: NDArray[np.int32]
    touched_in: NDArray[np.int32]
    touched: NDArray[np.int32]
    node_words: NDArray[np.int32]
    node_next: NDArray[np.int32]
    state: NDArray[np.int64]


class _Heap(NamedTuple):
    counts: NDArray[np.int64]
    pairs: NDArray[np.int32]


@nb.njit(cache=True, _nrt=False, inline="always")
def _find_slot(slots: NDArray[np.int32], keys: NDArray[np.int64], key: Integer) -> Integer:
    hashed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mask = np.int64(slots.size - 1)
    slot = np.int64((hashed ^ (hashed >> np.uint64(32))) >> np.uint64(8)) & mask
    while slots[slot] and keys[slots[slot] - 1] != key:
        slot = (slot + 1) & mask
    return slot


@nb.njit(cache=True, _nrt=False)
def _add(pairs: _Pairs, left: Integer, right: Integer, word: Integer, count: Integer) -> None:
    """Count a pair that `word` now holds; the caller has made sure of room for it."""
    slots, keys, counts, first_nodes, touched_in, touched, node_words, node_next, state = pairs
    key = left << 32 | right
    slot = _find_slot(slots, keys, key)
    pair = np.int64(slots[slot]) - 1
    if pair < 0:
        pair = state[_PAIRS]
        state[_PAIRS] += 1
        slots[slot] = pair + 1
        keys[pair] = key
        counts[pair] = 0
        first_nodes[pair] = -1
        touched_in[pair] = -1
    counts[pair] += count
    if touched_in[pair] != state[_MERGES]:
        touched_in[pair] = state[_MERGES]
        touched[state[_TOUCHED]] = pair
        state[_TOUCHED] += 1
    first = first_nodes[pair]
    if first < 0 or node_words[first] != word:
        node = state[_FREE]
        if node < 0:
            node = state[_NODES]
            state[_NODES] += 1
        else:
            state[_FREE] = node_next[node]
        node_words[node] = word
        node_next[node] = first
        first_nodes[pair] = node


@nb.njit(cache=True, _nrt=False)
def _subtract(pairs: _Pairs, left: Integer, right: Integer, count: Integer) -> None:
    pairs.counts[pairs.slots[_find_slot(pairs.slots, pairs.keys, left << 32 | right)] - 1] -= count


@nb.njit(cache=True, _nrt=False)
def _count_word_pairs(words: _Words, pairs: _Pairs, word: Integer) -> Integer:
    """Count the pairs of each word from `word` on; return where room ran out, else -1."""
    symbols, starts, lengths, word_counts = words
    while word < lengths.size:
        length = np.int64(lengths[word])
        if (
            pairs.state[_PAIRS] + length > pairs.keys.size
            or pairs.state[_NODES] + length > pairs.node_words.size
        ):
            return word
        for index in range(starts[word], starts[word] + length - 1):
            left, right = np.int64(symbols[index]), np.int64(symbols[index + 1])
            _add(pairs, left, right, word, word_counts[word])
        word += 1
    return np.int64(-1)


@nb.njit(cache=True, _nrt=False)
def _merge_in_words(
    words: _Words, pairs: _Pairs, node: Integer, left: Integer, right: Integer, merged: Integer
) -> Integer:
    """Merge a pair in the words listed from `node` on; return where room ran out, else -1."""
    symbols, starts, lengths, word_counts = words
    while node >= 0:
        word = np.int64(pairs.node_words[node])
        length = np.int64(lengths[word])
        if (
            pairs.state[_PAIRS] + length > pairs.keys.size
            or pairs.state[_NODES] + length > pairs.node_words.size
        ):
            return node
        count = word_counts[word]
        start = starts[word]
        end = start + length
        source = start
        target = start
        while source < end:
            symbol = np.int64(symbols[source])
            if symbol != left or source + 1 == end or symbols[source + 1] != right:
                symbols[target] = symbol
                source += 1
            else:
                _subtract(pairs, left, right, count)
                if target > start:
                    before = np.int64(symbols[target - 1])
                    _subtract(pairs, before, left, count)
                    _add(pairs, before, merged, word, count)
                if source + 2 < end:
                    after = np.int64(symbols[source + 2])
                    _subtract(pairs, right, after, count)
                    _add(pairs, merged, after, word, count)
                symbols[target] = merged
                source += 2
            target += 1
        lengths[word] = target - start
        following = np.int64(pairs.node_next[node])
        pairs.node_next[node] = pairs.state[_FREE]
        pairs.state[_FREE] = node
        node = following
    return np.int64(-1)


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
def _pop(heap: _Heap, pairs: _Pairs, min_count: Integer) -> Integer:
    """Return the most frequent pair of at least `min_count`, -1 where there is none."""
    state = pairs.state
    while state[_HEAP] > 0:
        count = heap.counts[0]
        pair = np.int64(heap.pairs[0])
        now = pairs.counts[pair]
        if now < count and now >= min_count:
            _sift_down(heap, pairs.keys, state[_HEAP], now, pair)
            continue
        state[_HEAP] -= 1
        last = state[_HEAP]
        _sift_down(heap, pairs.keys, last, heap.counts[last], np.int64(heap.pairs[last]))
        if now == count:
            return pair
    return np.int64(-1)


@nb.njit(cache=True, _nrt=False)
def _push_touched(heap: _Heap, pairs: _Pairs, min_count: Integer) -> None:
    counts, numbers = heap
    state = pairs.state
    for index in range(state[_TOUCHED]):
        pair = np.int64(pairs.touched[index])
        count = pairs.counts[pair]
        if count < min_count:
            continue
        place = state[_HEAP]
        state[_HEAP] += 1
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
    state[_TOUCHED] = 0
    state[_MERGES] += 1


@nb.njit(cache=True, _nrt=False)
def _fill_slots(slots: NDArray[np.int32], keys: NDArray[np.int64], count: Integer) -> None:
    for pair in range(count):
        slots[_find_slot(slots, keys, keys[pair])] = pair + 1


class PairQueue:
    """Hands out the most frequent pair of adjacent ids, and merges it wherever it stands."""

    def __init__(
        self,
        symbols: NDArray[np.int32],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        min_count: int,
    ) -> None:
        """Take words as ids: symbols [ids] is overwritten, starts [words + 1], counts [words]."""
        self._words = _Words(symbols, starts, np.diff(starts).astype(np.int32), counts)
        self._min_count = min_count
        self._pairs = _empty_pairs(1 << 16, symbols.size + 1)
        self._heap = _Heap(np.empty(0, np.int64), np.empty(0, np.int32))
        word = 0
        while (word := _count_word_pairs(self._words, self._pairs, word)) >= 0:
            self._grow(int(self._words.lengths[word]))
        self._queue_touched()

    def pop(self) -> tuple[int, int] | None:
        """Return (left, right) of the most frequent pair; of equals the smallest ids."""
        pair = _pop(self._heap, self._pairs, self._min_count)
        if pair < 0:
            return None
        key = int(self._pairs.keys[pair])
        return key >> 32, key & 0xFFFFFFFF

    def merge(self, left: int, right: int, merged: int) -> None:
        """Replace each (left, right), from the left of a word, by the id `merged`."""
        pairs = self._pairs
        pair = pairs.slots[_find_slot(pairs.slots, pairs.keys, left << 32 | right)] - 1
        node = int(pairs.first_nodes[pair])
        pairs.first_nodes[pair] = -1
        while (node := _merge_in_words(self._words, self._pairs, node, left, right, merged)) >= 0:
            self._grow(int(self._words.lengths[self._pairs.node_words[node]]))
        self._queue_touched()

    def _queue_touched(self) -> None:
        state = self._pairs.state
        needed = int(state[_HEAP] + state[_TOUCHED])
        if needed > len(self._heap.counts):
            counts, numbers = self._heap
            self._heap = _Heap(_longer(counts, needed), _longer(numbers, needed))
        _push_touched(self._heap, self._pairs, self._min_count)

    def _grow(self, room: int) -> None:
        old = self._pairs
        pair_room = len(old.keys) + room if old.state[_PAIRS] + room > len(old.keys) else 0
        node_room = room + len(old.node_words) // 4
        if old.state[_NODES] + room <= len(old.node_words):
            node_room = 0
        slots = old.slots
        keys = _longer(old.keys, pair_room)
        if pair_room:
            slots = np.zeros(1 << (2 * len(keys) - 1).bit_length(), np.int32)
            _fill_slots(slots, keys, old.state[_PAIRS])
        self._pairs = _Pairs(
            slots=slots,
            keys=keys,
            counts=_longer(old.counts, pair_room),
            first_nodes=_longer(old.first_nodes, pair_room),
            touched_in=_longer(old.touched_in, pair_room),
            touched=_longer(old.touched, pair_room),
            node_words=_longer(old.node_words, node_room),
            node_next=_longer(old.node_next, node_room),
            state=old.state,
        )


def _longer(array: NDArray[Any], room: int) -> NDArray[Any]:
    return np.concatenate((array, np.empty(room, array.dtype)))


def _empty_pairs(pairs: int, nodes: int) -> _Pairs:
    state = np.zeros(6, np.int64)
    state[_FREE] = -1
    return _Pairs(
        slots=np.zeros(2 * pairs, np.int32),
        keys=np.empty(pairs, np.int64),
        counts=np.empty(pairs, np.int64),
        first_nodes=np.empty(pairs, np.int32),
        touched_in=np.empty(pairs, np.int32),
        touched=np.empty(pairs, np.int32),
        node_words=np.empty(nodes, np.int32),
        node_next=np.empty(nodes, np.int32),
        state=state,
    )
