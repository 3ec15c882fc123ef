"""Counts of adjacent pairs of pieces in words, kept up to date over merges.

Words are runs of an int32 array, shortened in place. Each pair has its int64 count and a list
of the words it was seen in, so that a merge touches those words only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

Integer = int | np.int64

# Places in Pairs.state; MERGED is the number of times the last merge was made in the text.
PAIRS, NODES, FREE, TOUCHED, HEAP, MERGES, MERGED = range(7)


class _Words(NamedTuple):
    symbols: NDArray[np.int32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int32]
    counts: NDArray[np.int64]


class Pairs(NamedTuple):
    """Pairs by number: key = left id << 32 | right id, found over an open-addressing table.

    `touched` lists the pairs that got occurrences since the queue last looked.
    """

    slots: NDArray[np.int32]
    keys: NDArray[np.int64]
    counts: NDArray[np.int64]
    first_nodes: NDArray[np.int32]
    touched_in: NDArray[np.int32]
    touched: NDArray[np.int32]
    node_words: NDArray[np.int32]
    node_next: NDArray[np.int32]
    state: NDArray[np.int64]


@nb.njit(cache=True, _nrt=False, inline="always")
def _find_slot(slots: NDArray[np.int32], keys: NDArray[np.int64], key: Integer) -> Integer:
    hashed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mask = np.int64(slots.size - 1)
    slot = np.int64((hashed ^ (hashed >> np.uint64(32))) >> np.uint64(8)) & mask
    while slots[slot] and keys[slots[slot] - 1] != key:
        slot = (slot + 1) & mask
    return slot


@nb.njit(cache=True, _nrt=False)
def _add(pairs: Pairs, left: Integer, right: Integer, word: Integer, count: Integer) -> None:
    """Count a pair that `word` now holds; the caller has made sure of room for it."""
    slots, keys, counts, first_nodes, touched_in, touched, node_words, node_next, state = pairs
    key = left << 32 | right
    slot = _find_slot(slots, keys, key)
    pair = np.int64(slots[slot]) - 1
    if pair < 0:
        pair = state[PAIRS]
        state[PAIRS] += 1
        slots[slot] = pair + 1
        keys[pair] = key
        counts[pair] = 0
        first_nodes[pair] = -1
        touched_in[pair] = -1
    counts[pair] += count
    if touched_in[pair] != state[MERGES]:
        touched_in[pair] = state[MERGES]
        touched[state[TOUCHED]] = pair
        state[TOUCHED] += 1
    first = first_nodes[pair]
    if first < 0 or node_words[first] != word:
        node = state[FREE]
        if node < 0:
            node = state[NODES]
            state[NODES] += 1
        else:
            state[FREE] = node_next[node]
        node_words[node] = word
        node_next[node] = first
        first_nodes[pair] = node


@nb.njit(cache=True, _nrt=False)
def _subtract(pairs: Pairs, left: Integer, right: Integer, count: Integer) -> None:
    pairs.counts[pairs.slots[_find_slot(pairs.slots, pairs.keys, left << 32 | right)] - 1] -= count


@nb.njit(cache=True, _nrt=False)
def _count_word_pairs(words: _Words, pairs: Pairs, word: Integer) -> Integer:
    """Count the pairs of each word from `word` on; return where room ran out, else -1."""
    symbols, starts, lengths, word_counts = words
    while word < lengths.size:
        length = np.int64(lengths[word])
        if (
            pairs.state[PAIRS] + length > pairs.keys.size
            or pairs.state[NODES] + length > pairs.node_words.size
        ):
            return word
        for index in range(starts[word], starts[word] + length - 1):
            left, right = np.int64(symbols[index]), np.int64(symbols[index + 1])
            _add(pairs, left, right, word, word_counts[word])
        word += 1
    return np.int64(-1)


@nb.njit(cache=True, _nrt=False)
def _merge_in_words(
    words: _Words, pairs: Pairs, node: Integer, left: Integer, right: Integer, merged: Integer
) -> Integer:
    """Merge a pair in the words listed from `node` on; return where room ran out, else -1."""
    symbols, starts, lengths, word_counts = words
    while node >= 0:
        word = np.int64(pairs.node_words[node])
        length = np.int64(lengths[word])
        if (
            pairs.state[PAIRS] + length > pairs.keys.size
            or pairs.state[NODES] + length > pairs.node_words.size
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
                pairs.state[MERGED] += count
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
        pairs.node_next[node] = pairs.state[FREE]
        pairs.state[FREE] = node
        node = following
    return np.int64(-1)


@nb.njit(cache=True, _nrt=False)
def _fill_slots(slots: NDArray[np.int32], keys: NDArray[np.int64], count: Integer) -> None:
    for pair in range(count):
        slots[_find_slot(slots, keys, keys[pair])] = pair + 1


class PairCounts:
    """The pairs of adjacent ids in some words, and how often each stands in the text."""

    def __init__(
        self, symbols: NDArray[np.int32], starts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        """Take words as ids: symbols [ids] is overwritten, starts [words + 1], counts [words]."""
        self._words = _Words(symbols, starts, np.diff(starts).astype(np.int32), counts)
        self.pairs = _empty_pairs(1 << 16, symbols.size + 1)
        word = 0
        while (word := _count_word_pairs(self._words, self.pairs, word)) >= 0:
            self._grow(int(self._words.lengths[word]))

    def count(self, left: int, right: int) -> int:
        """Return how often (left, right) stands in the text."""
        pair = self.pairs.slots[_find_slot(self.pairs.slots, self.pairs.keys, left << 32 | right)]
        return int(self.pairs.counts[pair - 1]) if pair else 0

    def merge(self, left: int, right: int, merged: int) -> None:
        """Replace each (left, right), from the left of a word, by the id `merged`."""
        pairs = self.pairs
        pair = pairs.slots[_find_slot(pairs.slots, pairs.keys, left << 32 | right)] - 1
        node = int(pairs.first_nodes[pair])
        pairs.first_nodes[pair] = -1
        pairs.state[MERGED] = 0
        del pairs  # so that growing frees what it replaces
        while (node := _merge_in_words(self._words, self.pairs, node, left, right, merged)) >= 0:
            self._grow(int(self._words.lengths[self.pairs.node_words[node]]))

    def _grow(self, room: int) -> None:
        """Make room for that many more pairs and nodes."""
        pairs, nodes = int(self.pairs.state[PAIRS]), int(self.pairs.state[NODES])
        if nodes + room > len(self.pairs.node_words):
            more = room + len(self.pairs.node_words) // 8
            self._lengthen(("node_words", "node_next"), more)
        if pairs + room > len(self.pairs.keys):
            more = room + len(self.pairs.keys) // 2
            self._lengthen(("keys", "counts", "first_nodes", "touched_in", "touched"), more)
            slots = 1 << (2 * len(self.pairs.keys) - 1).bit_length()
            if slots > len(self.pairs.slots):
                self.pairs = self.pairs._replace(slots=np.zeros(slots, np.int32))
                _fill_slots(self.pairs.slots, self.pairs.keys, pairs)

    def _lengthen(self, names: Sequence[str], room: int) -> None:
        for name in names:
            array = getattr(self.pairs, name)
            # In place: of a gigabyte the system moves the pages, where a copy would double it.
            array.resize(array.size + room, refcheck=False)


def longer(array: NDArray[Any], room: int) -> NDArray[Any]:
    """Return a copy with room for that many more, not filled."""
    return np.concatenate((array, np.empty(room, array.dtype)))


def _empty_pairs(pairs: int, nodes: int) -> Pairs:
    state = np.zeros(7, np.int64)
    state[FREE] = -1
    return Pairs(
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
