"""Ragged rows as (values, offsets), and how they are handed to compiled loops.

Row r is values[offsets[r] : offsets[r + 1]].
"""

from __future__ import annotations

from typing import Any, TypeVar

import numba as nb
import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint16] | NDArray[np.uint32]
"""Token ids; uint16 where the vocabulary allows it."""

Scalar = TypeVar("Scalar", bound=np.generic)


def check_offsets(name: str, offsets: NDArray[np.int64], values: int) -> None:
    """Raise ValueError unless int64 `offsets` rise within [0, values].

    A compiled loop does not check bounds: offsets that do not fit would read foreign memory.
    """
    if offsets.dtype != np.int64:
        raise ValueError(f"{name} are {offsets.dtype}: must be int64")
    if offsets.size == 0 or offsets[0] < 0 or offsets[-1] > values or (np.diff(offsets) < 0).any():
        raise ValueError(f"{name}: must rise from at least 0 to at most {values}")


def read_only(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return a contiguous read-only view (a copy where `array` is strided).

    numba compiles once more for every mix of writable and read-only arguments. Arrow's buffers
    and Ray's objects are read-only, so all inputs are passed so.
    """
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def take_rows(
    values: NDArray[Any], offsets: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the rows `order` of a ragged column, as values and int64 offsets of their own."""
    taken_offsets = np.zeros(order.size + 1, dtype=np.int64)
    np.cumsum(np.diff(offsets)[order], out=taken_offsets[1:])
    taken = np.empty(int(taken_offsets[-1]), dtype=values.dtype)
    _copy_rows(
        read_only(values), read_only(offsets), read_only(order), read_only(taken_offsets), taken
    )
    return taken, taken_offsets


@nb.njit(cache=True, nogil=True)
def _copy_rows(
    values: NDArray[Any],
    offsets: NDArray[np.int64],
    order: NDArray[np.int64],
    taken_offsets: NDArray[np.int64],
    taken: NDArray[Any],
) -> None:
    for row in range(order.size):
        source = offsets[order[row]]
        target = taken_offsets[row]
        for index in range(taken_offsets[row + 1] - target):
            taken[target + index] = values[source + index]
