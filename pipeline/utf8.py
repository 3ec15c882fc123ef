"""UTF-8 in compiled loops."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray


@nb.njit(cache=True, inline="always")
def decode(text: NDArray[np.uint8], at: int) -> tuple[np.int64, np.int64]:
    """Return (code point, bytes) of the character at `at` of valid UTF-8."""
    first = np.int64(text[at])
    if first < 0x80:
        return first, np.int64(1)
    if first < 0xE0:
        return (first & 0x1F) << 6 | np.int64(text[at + 1]) & 0x3F, np.int64(2)
    if first < 0xF0:
        return (
            (first & 0x0F) << 12
            | (np.int64(text[at + 1]) & 0x3F) << 6
            | np.int64(text[at + 2]) & 0x3F
        ), np.int64(3)
    return (
        (first & 0x07) << 18
        | (np.int64(text[at + 1]) & 0x3F) << 12
        | (np.int64(text[at + 2]) & 0x3F) << 6
        | np.int64(text[at + 3]) & 0x3F
    ), np.int64(4)
