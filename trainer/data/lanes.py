"""The lanes of one rank in one epoch, read a window at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.assembly import Instances, Taken, concatenate
from trainer.data.epoch_order import EpochOrder, LaneOrder


@dataclass(slots=True, kw_only=True)
class _Window:
    instances: Instances
    order: NDArray[np.int64]
    """Its rows as they are handed out."""
    units: NDArray[np.int64]
    """The lane's unit that each of them is taken at, in that order."""
    taken: int
    """How many of them were handed out."""


@dataclass(slots=True, kw_only=True)
class _Lane:
    number: int
    order: LaneOrder
    next_window: int
    window: _Window | None = None


class RankLanes:
    """Hands out the rows of some lanes in their order, from `cursor` units of the epoch on.

    `read` returns a record batch by its index. Memory: one window a lane.
    """

    def __init__(
        self, order: EpochOrder, lanes: range, cursor: int, read: Callable[[int], Instances]
    ) -> None:
        self._order = order
        self._cursor = cursor
        self._read = read
        self._own = lanes
        self._lanes = []
        for number in lanes:
            lane = order.lane(number)
            asked = order.lane_units(range(number, number + 1), np.array([cursor]))
            window = lane.window_from(int(asked[0, 0]))
            self._lanes.append(_Lane(number=number, order=lane, next_window=window))

    def take(self, cursors: Sequence[int]) -> list[Taken]:
        """Return the rows of the steps that end at `cursors`, units of the epoch that rise."""
        taken = []
        # What was asked before is taken; after a restart that is part of a window.
        everyone = self._order.lane_units(self._own, np.array([self._cursor, *cursors]))
        for lane, asked in zip(self._lanes, everyone, strict=True):
            while True:
                if lane.window is None:
                    if lane.next_window >= lane.order.windows or (
                        lane.order.units[lane.next_window] >= asked[-1]
                    ):
                        break
                    lane.window = self._open(lane, asked[0])
                piece = _rows_until(lane.window, asked[1:])
                if piece is not None:
                    taken.append(piece)
                if lane.window.taken < lane.window.order.size:
                    break
                lane.window = None
        self._cursor = cursors[-1]
        return taken

    def _open(self, lane: _Lane, asked: int) -> _Window:
        number = lane.next_window
        lane.next_window += 1
        pieces = [
            self._read(int(lane.order.batch[at])).span(
                int(lane.order.start[at]), int(lane.order.end[at])
            )
            for at in lane.order.segments(number)
        ]
        instances = concatenate(pieces)
        order, units = self._order.window_rows(
            lane.number, lane.order, number, instances.row_tokens()
        )
        taken = int(np.searchsorted(units, asked, side="left"))
        return _Window(instances=instances, order=order, units=units, taken=taken)


def _rows_until(window: _Window, asked: NDArray[np.int64]) -> Taken | None:
    """Return the rows of a window whose turn is before each step's `asked`, None if none."""
    ends = np.maximum(np.searchsorted(window.units, asked), window.taken)
    counts = ends.copy()
    counts[0] -= window.taken
    counts[1:] -= ends[:-1]
    rows = window.order[window.taken : ends[-1]]
    window.taken = int(ends[-1])
    return Taken(instances=window.instances, rows=rows, counts=counts) if rows.size else None
