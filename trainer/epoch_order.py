"""Which instances an epoch sees when: integers in, integers out, no I/O.

All record batches of the shards are permuted, and their rows laid end to end: the epoch's
sequence of N rows. Lane l of L owns the rows [N * l // L, N * (l + 1) // L) of it, so lanes are
equal within one row. Only the record batch a boundary falls into is wanted by two lanes (by
more where a lane is shorter than a record batch); a rank reads it once for all its lanes, so
the record batches read in an epoch are at most R + ranks - 1 of R. Inside a lane, rows are
shuffled within windows of some record batches. Step s takes the rows [s * b, (s + 1) * b) of
every lane, b = batch_size / L; the last step takes what is left, so it may be smaller. Nothing
is dropped, and every row comes once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.contract import ShardEntry
from pipeline.keyed_random import derive_key, permutation


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatches:
    """The R record batches of some shards that have rows, each int64 [R]."""

    shard: NDArray[np.int64]
    """Index of the shard."""
    number: NDArray[np.int64]
    """Number of the record batch in its shard."""
    rows: NDArray[np.int64]
    first_instance: NDArray[np.int64]
    """Instance number of its first row."""

    @staticmethod
    def of(shards: Sequence[ShardEntry]) -> RecordBatches:
        """List the record batches of `shards` in their order."""
        table = []
        for index, shard in enumerate(shards):
            first = shard.first_instance
            for number, rows in enumerate(shard.batch_rows):
                if rows > 0:
                    table.append((index, number, rows, first))
                first += rows
        columns = np.array(table, dtype=np.int64).reshape(-1, 4).T
        return RecordBatches(
            shard=columns[0], number=columns[1], rows=columns[2], first_instance=columns[3]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows [start, end) of the epoch's sequence, shuffled together."""

    places: range
    """Places of the record batches they lie in, in the epoch's order of record batches."""
    start: int
    end: int
    order: NDArray[np.int64]
    """Permutation of the end - start rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """The order of one epoch, fixed by seed, epoch, lanes and window_batches."""

    seed: int
    epoch: int
    lanes: int
    window_batches: int
    batches: NDArray[np.int64]
    """[R], the record batches in the epoch's order."""
    starts: NDArray[np.int64]
    """[R + 1], where each begins in the epoch's sequence of rows."""

    @staticmethod
    def of(
        table: RecordBatches, *, seed: int, epoch: int, lanes: int, window_batches: int
    ) -> EpochOrder:
        """Permute the record batches of `table` for an epoch."""
        batches = permutation(table.rows.size, derive_key(seed, "order", epoch))
        return EpochOrder(
            seed=seed,
            epoch=epoch,
            lanes=lanes,
            window_batches=window_batches,
            batches=batches,
            starts=np.concatenate([[0], np.cumsum(table.rows[batches])]),
        )

    def lane_rows(self, lane: int) -> tuple[int, int]:
        """Return the rows [start, end) of the epoch's sequence that a lane owns."""
        rows = int(self.starts[-1])
        return rows * lane // self.lanes, rows * (lane + 1) // self.lanes

    def place_of(self, row: int) -> int:
        """Return the place of the record batch that holds a row of the epoch's sequence."""
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def places_from(self, lane: int, row: int) -> range:
        """Return the places a lane still reads when it stands at `row`, which it owns."""
        start, end = self.lane_rows(lane)
        first = self.place_of(start)
        number = (self.place_of(row) - first) // self.window_batches
        return range(first + number * self.window_batches, self.place_of(end - 1) + 1)

    def window_at(self, lane: int, row: int) -> Window:
        """Return the window of a lane that `row`, which the lane owns, falls into."""
        start, end = self.lane_rows(lane)
        places = self.places_from(lane, row)[: self.window_batches]
        number = (places.start - self.place_of(start)) // self.window_batches
        first = max(start, int(self.starts[places.start]))
        last = min(end, int(self.starts[places.stop]))
        key = derive_key(self.seed, "order", self.epoch, lane, number)
        return Window(places=places, start=first, end=last, order=permutation(last - first, key))


def steps_in_epoch(rows: int, *, lanes: int, batch_size: int) -> int:
    """Return the steps of an epoch: as many as its longest lane needs."""
    longest = -(-rows // lanes)
    return -(-longest // (batch_size // lanes))


def sequences_in_step(rows: int, *, lanes: int, batch_size: int, step: int) -> int:
    """Return the sequences of a step's global batch."""
    share = batch_size // lanes
    bounds = rows * np.arange(lanes + 1, dtype=np.int64) // lanes
    return int(np.clip(np.diff(bounds) - step * share, 0, share).sum())
