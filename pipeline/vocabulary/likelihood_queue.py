"""The pair of the highest score first: count(ab) / (count(a) count(b)).

The rule WordPiece is described with (Schuster and Nakajima 2012; Hugging Face's course). A merge
changes the counts of a, b and ab, and so the scores of all pairs that hold one of them, most of
them upwards: a lazy heap, which corrects what has fallen, would be wrong. The heap here knows
each pair's place, and every such pair is scored again. Scores are compared exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.vocabulary.pair_counts import (
    HEAP,
    MERGED,
    MERGES,
    PAIRS,
    TOUCHED,
    Integer,
    PairCounts,
    Pairs,
    longer,
)

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
# Three conversions, a product and a quotient are off by 6e-16 of the score at most.
_CERTAIN = 1e-14
_UNLISTED = -2


class _Scores(NamedTuple):
    """By pair: what it was last scored with, its place in the heap, and the lists it is in."""

    scores: NDArray[np.float64]
    scored: NDArray[np.int64]  # [pairs, 3]: counts of the pair, of its left and its right piece
    places: NDArray[np.int32]  # -1: not in the heap
    heap: NDArray[np.int32]
    next_of_left: NDArray[np.int32]  # _UNLISTED: not in that list
    next_of_right: NDArray[np.int32]


class _Pieces(NamedTuple):
    """By piece: its count, and the first pair with it on the left and on the right."""

    counts: NDArray[np.int64]
    first_of_left: NDArray[np.int32]
    first_of_right: NDArray[np.int32]


@nb.njit(cache=True, _nrt=False, inline="always")
def _wide(one: np.uint64, other: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the high and the low 64 bits of a product."""
    one_high, one_low = one >> _HALF, one & _LOW
    other_high, other_low = other >> _HALF, other & _LOW
    low = one_low * other_low
    middle = one_high * other_low + (low >> _HALF)
    cross = one_low * other_high + (middle & _LOW)
    high = one_high * other_high + (middle >> _HALF) + (cross >> _HALF)
    return high, (cross << _HALF) | (low & _LOW)


@nb.njit(cache=True, _nrt=False)
def _product(
    one: Integer, other: Integer, third: Integer
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Return the 192 bits of a product, highest first."""
    high, low = _wide(np.uint64(one), np.uint64(other))
    carried, last = _wide(low, np.uint64(third))
    top, middle = _wide(high, np.uint64(third))
    total = middle + carried
    if total < carried:
        top += np.uint64(1)
    return top, total, last


@nb.njit(cache=True, _nrt=False)
def _precedes(scores: _Scores, keys: NDArray[np.int64], pair: Integer, other: Integer) -> bool:
    mine, theirs = scores.scores[pair], scores.scores[other]
    if abs(mine - theirs) > _CERTAIN * max(mine, theirs):
        return bool(mine > theirs)
    scored = scores.scored
    ours = _product(scored[pair, 0], scored[other, 1], scored[other, 2])
    others = _product(scored[other, 0], scored[pair, 1], scored[pair, 2])
    if ours[0] != others[0]:
        return bool(ours[0] > others[0])
    if ours[1] != others[1]:
        return bool(ours[1] > others[1])
    if ours[2] != others[2]:
        return bool(ours[2] > others[2])
    return bool(keys[pair] < keys[other])


@nb.njit(cache=True, _nrt=False)
def _settle(scores: _Scores, keys: NDArray[np.int64], size: Integer, pair: Integer) -> None:
    """Move a pair, the only one whose score may not fit its place, to where it fits."""
    heap, places = scores.heap, scores.places
    place = np.int64(places[pair])
    while place > 0:
        parent = (place - 1) >> 1
        if not _precedes(scores, keys, pair, heap[parent]):
            break
        heap[place] = heap[parent]
        places[heap[place]] = place
        place = parent
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _precedes(scores, keys, heap[child + 1], heap[child]):
            child += 1
        if not _precedes(scores, keys, heap[child], pair):
            break
        heap[place] = heap[child]
        places[heap[place]] = place
        place = child
    heap[place] = pair
    places[pair] = place


@nb.njit(cache=True, _nrt=False)
def _remove(scores: _Scores, pairs: Pairs, pair: Integer) -> None:
    state = pairs.state
    state[HEAP] -= 1
    place = scores.places[pair]
    last = scores.heap[state[HEAP]]
    scores.places[pair] = -1
    if last != pair:
        scores.heap[place] = last
        scores.places[last] = place
        _settle(scores, pairs.keys, state[HEAP], last)


@nb.njit(cache=True, _nrt=False)
def _score(
    scores: _Scores,
    pairs: Pairs,
    piece_counts: NDArray[np.int64],
    pair: Integer,
    min_count: Integer,
) -> None:
    """Put a pair where its counts of now belong; one below `min_count` leaves the heap."""
    count = pairs.counts[pair]
    if count < min_count:
        if scores.places[pair] >= 0:
            _remove(scores, pairs, pair)
        return
    left = piece_counts[pairs.keys[pair] >> 32]
    right = piece_counts[pairs.keys[pair] & 0xFFFFFFFF]
    scored = scores.scored
    scored[pair, 0] = count
    scored[pair, 1] = left
    scored[pair, 2] = right
    scores.scores[pair] = np.float64(count) / (np.float64(left) * np.float64(right))
    if scores.places[pair] < 0:
        place = pairs.state[HEAP]
        pairs.state[HEAP] += 1
        scores.heap[place] = pair
        scores.places[pair] = place
    _settle(scores, pairs.keys, pairs.state[HEAP], pair)


@nb.njit(cache=True, _nrt=False)
def _link_touched(scores: _Scores, pairs: Pairs, pieces: _Pieces, min_count: Integer) -> None:
    """List pairs that became frequent enough under their left and their right piece."""
    for index in range(pairs.state[TOUCHED]):
        pair = np.int64(pairs.touched[index])
        if pairs.counts[pair] < min_count:
            continue
        left, right = pairs.keys[pair] >> 32, pairs.keys[pair] & 0xFFFFFFFF
        if scores.next_of_left[pair] == _UNLISTED:
            scores.next_of_left[pair] = pieces.first_of_left[left]
            pieces.first_of_left[left] = pair
        if scores.next_of_right[pair] == _UNLISTED:
            scores.next_of_right[pair] = pieces.first_of_right[right]
            pieces.first_of_right[right] = pair
    pairs.state[TOUCHED] = 0
    pairs.state[MERGES] += 1


@nb.njit(cache=True, _nrt=False)
def _score_all(scores: _Scores, pairs: Pairs, pieces: _Pieces, min_count: Integer) -> None:
    for pair in range(pairs.state[PAIRS]):
        _score(scores, pairs, pieces.counts, pair, min_count)


@nb.njit(cache=True, _nrt=False)
def _score_list(
    scores: _Scores,
    pairs: Pairs,
    piece_counts: NDArray[np.int64],
    first: NDArray[np.int32],
    following: NDArray[np.int32],
    piece: Integer,
    min_count: Integer,
) -> None:
    """Score the pairs listed under a piece again; those below `min_count` leave the list."""
    before = np.int64(-1)
    pair = np.int64(first[piece])
    while pair >= 0:
        after = np.int64(following[pair])
        _score(scores, pairs, piece_counts, pair, min_count)
        if pairs.counts[pair] >= min_count:
            before = pair
        else:
            following[pair] = _UNLISTED
            if before < 0:
                first[piece] = after
            else:
                following[before] = after
        pair = after


@nb.njit(cache=True, _nrt=False)
def _score_with(
    scores: _Scores, pairs: Pairs, pieces: _Pieces, piece: Integer, min_count: Integer
) -> None:
    """Score every pair that holds a piece again."""
    counts, first_of_left, first_of_right = pieces
    _score_list(scores, pairs, counts, first_of_left, scores.next_of_left, piece, min_count)
    _score_list(scores, pairs, counts, first_of_right, scores.next_of_right, piece, min_count)


class LikelihoodQueue:
    """Hands out the pair of the highest score, and merges it wherever it stands."""

    def __init__(self, counts: PairCounts, piece_counts: NDArray[np.int64], min_count: int) -> None:
        """Take pairs of which nothing was merged yet, and int64 counts of each possible id."""
        self._counts = counts
        self._min_count = min_count
        none = np.full(piece_counts.size, -1, np.int32)
        self._pieces = _Pieces(piece_counts.copy(), none, none.copy())
        self._scores = _Scores(
            scores=np.empty(0, np.float64),
            scored=np.empty((0, 3), np.int64),
            places=np.empty(0, np.int32),
            heap=np.empty(0, np.int32),
            next_of_left=np.empty(0, np.int32),
            next_of_right=np.empty(0, np.int32),
        )
        self._link_touched()
        _score_all(self._scores, counts.pairs, self._pieces, min_count)

    def pop(self) -> tuple[int, int] | None:
        """Return (left, right) of the highest score; of equals the smallest ids."""
        pairs = self._counts.pairs
        if pairs.state[HEAP] == 0:
            return None
        pair = int(self._scores.heap[0])
        _remove(self._scores, pairs, pair)
        key = int(pairs.keys[pair])
        return key >> 32, key & 0xFFFFFFFF

    def merge(self, left: int, right: int, merged: int) -> None:
        """Replace each (left, right), from the left of a word, by the id `merged`."""
        self._counts.merge(left, right, merged)
        times = self._counts.pairs.state[MERGED]
        for piece, change in (left, -times), (right, -times), (merged, times):
            self._pieces.counts[piece] += change
        self._link_touched()
        for piece in {left, right, merged}:
            _score_with(self._scores, self._counts.pairs, self._pieces, piece, self._min_count)

    def _link_touched(self) -> None:
        pairs, old = self._counts.pairs, self._scores
        room = len(pairs.keys) - len(old.heap)
        if room:
            no_place, in_no_list = np.full(room, -1, np.int32), np.full(room, _UNLISTED, np.int32)
            self._scores = _Scores(
                scores=longer(old.scores, room),
                scored=np.concatenate((old.scored, np.empty((room, 3), np.int64))),
                places=np.concatenate((old.places, no_place)),
                heap=longer(old.heap, room),
                next_of_left=np.concatenate((old.next_of_left, in_no_list)),
                next_of_right=np.concatenate((old.next_of_right, in_no_list)),
            )
        _link_touched(self._scores, pairs, self._pieces, self._min_count)
