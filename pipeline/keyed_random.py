"""Counter-based random numbers: every draw is a pure function of (seed, purpose, identity).

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). The key
is 64 bits derived from (seed, purpose); the 128-bit counter is (draw block, stream, identity).
Nothing here holds state, so no draw depends on worker, order, batch or world size.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = np.uint32(0x9E3779B9)
_W1 = np.uint32(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


@nb.njit(cache=True, inline="always")
def philox(
    key: np.uint64, block: np.uint32, stream: np.uint32, identity: np.uint64
) -> tuple[np.uint32, np.uint32, np.uint32, np.uint32]:
    """Return the four 32-bit words of one Philox4x32-10 block.

    The counter is (block, stream, low and high half of identity): `identity` says whose draw
    it is, `stream` which epoch or repetition, `block` counts that identity's draws by fours.
    """
    k0 = np.uint32(key & _LOW)
    k1 = np.uint32(key >> _SHIFT)
    c0 = np.uint32(block)
    c1 = np.uint32(stream)
    c2 = np.uint32(np.uint64(identity) & _LOW)
    c3 = np.uint32(np.uint64(identity) >> _SHIFT)
    for _ in range(10):
        p0 = _M0 * np.uint64(c0)
        p1 = _M1 * np.uint64(c2)
        c0, c1, c2, c3 = (
            np.uint32(np.uint32(p1 >> _SHIFT) ^ c1 ^ k0),
            np.uint32(p1 & _LOW),
            np.uint32(np.uint32(p0 >> _SHIFT) ^ c3 ^ k1),
            np.uint32(p0 & _LOW),
        )
        k0 = np.uint32(k0 + _W0)
        k1 = np.uint32(k1 + _W1)
    return c0, c1, c2, c3


@nb.njit(cache=True)
def draw(key: np.uint64, index: np.uint32, stream: np.uint32, identity: np.uint64) -> np.uint32:
    """Return 32-bit draw number `index` of (key, stream, identity)."""
    words: tuple[np.uint32, ...] = philox(key, np.uint32(index >> 2), stream, identity)
    which = index & 3
    if which == 0:
        return words[0]
    if which == 1:
        return words[1]
    if which == 2:
        return words[2]
    return words[3]


@nb.njit(cache=True, inline="always")
def below(word: np.uint32, bound: np.uint32) -> np.uint32:
    """Map a 32-bit word to [0, bound) by multiply-shift; bias below bound / 2**32."""
    return np.uint32((np.uint64(word) * np.uint64(bound)) >> _SHIFT)


@nb.njit(cache=True, inline="always")
def unit(word: np.uint32) -> float:
    """Map a 32-bit word to a float64 in [0, 1)."""
    return np.float64(word) * (1.0 / 4294967296.0)


@nb.njit(cache=True)
def _shuffle(
    order: NDArray[np.int64], key: np.uint64, stream: np.uint32, identity: np.uint64
) -> None:
    for last in range(order.size - 1, 0, -1):
        word = draw(key, np.uint32(last), stream, identity)
        other = below(word, np.uint32(last + 1))
        order[last], order[other] = order[other], order[last]


def permutation(count: int, key: int, stream: int = 0, identity: int = 0) -> NDArray[np.int64]:
    """Return a keyed permutation of range(count) as int64; Fisher-Yates, Knuth 3.4.2 P.

    Raises ValueError for count >= 2**32.
    """
    if count >= 1 << 32:
        raise ValueError(f"count = {count}: a keyed permutation has fewer than 2**32 entries")
    order = np.arange(count, dtype=np.int64)
    _shuffle(order, np.uint64(key), np.uint32(stream), np.uint64(identity))
    return order
