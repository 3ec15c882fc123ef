"""The bits of dropout on a CPU, a pass over the mask for all that is done with them."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.keyed_random import philox

_NO_STREAM = np.uint32(0)
_NO_IDENTITY = np.uint64(0)
_LOW = np.uint32(0xFFFF)
_HALF = np.uint32(16)


def fill_kept(kept_8B: NDArray[np.float32], key: int, dropped_of_65536: int) -> None:
    """Set each value to 1, or to 0 with a probability of `dropped_of_65536` / 65,536.

    Eight rows, since a block of Philox has eight times 16 bits: block b, keyed with 64 bits, is
    for column b. So the compiler takes 16 blocks at a time.
    """
    _fill_kept(kept_8B, np.uint64(key), np.uint32(dropped_of_65536))


@nb.njit(cache=True, nogil=True)
def _fill_kept(kept_8B: NDArray[np.float32], key: np.uint64, dropped_of_65536: np.uint32) -> None:
    for block in range(kept_8B.shape[1]):
        first, second, third, fourth = philox(key, np.uint32(block), _NO_STREAM, _NO_IDENTITY)
        kept_8B[0, block] = np.float32((first & _LOW) >= dropped_of_65536)
        kept_8B[1, block] = np.float32((first >> _HALF) >= dropped_of_65536)
        kept_8B[2, block] = np.float32((second & _LOW) >= dropped_of_65536)
        kept_8B[3, block] = np.float32((second >> _HALF) >= dropped_of_65536)
        kept_8B[4, block] = np.float32((third & _LOW) >= dropped_of_65536)
        kept_8B[5, block] = np.float32((third >> _HALF) >= dropped_of_65536)
        kept_8B[6, block] = np.float32((fourth & _LOW) >= dropped_of_65536)
        kept_8B[7, block] = np.float32((fourth >> _HALF) >= dropped_of_65536)
