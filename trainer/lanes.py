"""The lanes of one rank in one epoch, read a window at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.contract import ShardEntry
from pipeline.instance_set import InstanceSet
from trainer.assembly import Instances, concatenate
from trainer.epoch_order import EpochOrder, RecordBatches


@dataclass(slots=True, kw_only=True)
class _Lane:
    lane: int
    row: int
    """Next row of the epoch's sequence."""
    end: int
    window: Instances | None = None
    """The window that `row` stands in, shuffled."""
    taken: int = 0
    """Instances of it that were handed out."""


class RankLanes:
    """Hands out the rows of some lanes in their order, from `taken` rows on in every lane.

    Memory: one window a lane, and the record batches that one of these lanes has read and
    another still needs (those the boundaries between lanes fall into).
    """

    def __init__(
        self,
        instance_set: InstanceSet,
        shards: Sequence[ShardEntry],
        table: RecordBatches,
        order: EpochOrder,
        lanes: range,
        taken: int,
    ) -> None:
        self._set = instance_set
        self._shards = shards
        self._table = table
        self._order = order
        self._lanes = []
        self._kept: dict[int, Instances] = {}
        # How many of these lanes have yet to read the record batch at each place.
        self._readers = np.zeros(order.batches.size, dtype=np.int64)
        for lane in lanes:
            start, end = order.lane_rows(lane)
            row = min(start + taken, end)
            self._lanes.append(_Lane(lane=lane, row=row, end=end))
            if row < end:
                places = order.places_from(lane, row)
                self._readers[places.start : places.stop] += 1

    def take(self, count: int) -> tuple[list[Instances], list[int]]:
        """Return the next `count` rows of every lane, fewer where it ends, and how many of each."""
        pieces: list[Instances] = []
        counts = []
        for lane in self._lanes:
            before = lane.row
            last = min(lane.row + count, lane.end)
            while lane.row < last:
                pieces.append(self._next(lane, last))
            counts.append(lane.row - before)
        return pieces, counts

    def _next(self, lane: _Lane, last: int) -> Instances:
        """Return rows of a lane up to `last` or to the end of its window."""
        if lane.window is None or lane.taken == lane.window.count:
            lane.window, lane.taken = self._open_window(lane), 0
        end = min(lane.taken + last - lane.row, lane.window.count)
        piece = lane.window.span(lane.taken, end)
        lane.row += end - lane.taken
        lane.taken = end
        return piece

    def _open_window(self, lane: _Lane) -> Instances:
        window = self._order.window_at(lane.lane, lane.row)
        pieces = []
        for place in window.places:
            first = int(self._order.starts[place])
            piece = self._read(place)
            start, end = max(window.start - first, 0), min(window.end - first, piece.count)
            pieces.append(piece.span(start, end))
        # From within a window only after a restart; what comes before was handed out then.
        return concatenate(pieces).take(window.order[lane.row - window.start :])

    def _read(self, place: int) -> Instances:
        piece = self._kept.pop(place, None)
        if piece is None:
            batch = int(self._order.batches[place])
            shard = self._shards[self._table.shard[batch]]
            rows = self._set.read_rows(shard, int(self._table.number[batch]))
            piece = Instances.of(rows, int(self._table.first_instance[batch]))
        self._readers[place] -= 1
        if self._readers[place] > 0:
            self._kept[place] = piece
        return piece
