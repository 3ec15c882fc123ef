"""Which instances an epoch sees when: integers in, integers out, no I/O.

An epoch's sequence. The shards are permuted (the record batches themselves where there are fewer
shards than lanes) and their rows laid end to end: N units, a unit being a sequence or a token.
Lane l of L owns the rows that begin in its share of the units, so that lanes are equal within one
row. Only the shard a border falls into is shared between two lanes, and of it only the record
batch at the border is wanted by both; a rank reads it once for all its lanes. So R ranks share at
most R - 1 shards in an epoch, and read at most R - 1 record batches twice.

Inside a lane. Its record batches, of all its shards, are permuted, and rows shuffled within
windows of some record batches, short and long ones by turns (trainer.data.balanced_order). A lane's
first window is shorter by a share of its own, so that lanes do not all open one at once.

Steps. Unit u of the epoch is the turn of the lane whose place in `spread` is u mod L; the n-th of
the N rows of a window of K units is taken at the turn of its unit n K // N. A step of B units thus
takes B / L of every lane, within one row, whatever B is. Where tokens are the unit, a lane is
behind by its place's part of a mean row: else all lanes would begin another row in the same step.
`spread` reverses the bits of the lane's number, so that every rank, which serves a contiguous run
of lanes, has an equal part of what is left over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.contract import ShardEntry
from pipeline.derived_keys import derive_key
from pipeline.keyed_random import permutation
from trainer.data.balanced_order import STRATA, balanced

Unit = Literal["sequences", "tokens"]

_EVERYTHING = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatches:
    """The R record batches of some shards that have rows, each int64 [R]."""

    shard: NDArray[np.int64]
    """Index of the shard."""
    number: NDArray[np.int64]
    """Number of the record batch in its shard."""
    rows: NDArray[np.int64]
    tokens: NDArray[np.int64]
    first_instance: NDArray[np.int64]
    """Instance number of its first row."""

    @staticmethod
    def of(shards: Sequence[ShardEntry]) -> RecordBatches:
        """List the record batches of `shards` in their order."""
        table = []
        for index, shard in enumerate(shards):
            first = shard.first_instance
            counts = zip(shard.batch_rows, shard.batch_tokens, strict=True)
            for number, (rows, tokens) in enumerate(counts):
                if rows > 0:
                    table.append((index, number, rows, tokens, first))
                first += rows
        columns = np.array(table, dtype=np.int64).reshape(-1, 5).T
        return RecordBatches(
            shard=columns[0],
            number=columns[1],
            rows=columns[2],
            tokens=columns[3],
            first_instance=columns[4],
        )

    def units(self, unit: Unit) -> NDArray[np.int64]:
        """Return the units of each record batch."""
        return self.rows if unit == "sequences" else self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOrder:
    """One lane of an epoch: S segments, each some rows of one record batch, in reading order."""

    batch: NDArray[np.int64]
    """[S], index of the record batch."""
    start: NDArray[np.int64]
    """[S], first row of it that the lane owns."""
    end: NDArray[np.int64]
    """[S], the row after the last."""
    edges: NDArray[np.int64]
    """[W + 1], the segment each window begins with, and S."""
    units: NDArray[np.int64]
    """[W + 1], units of the lane before each window, and all of them."""

    @property
    def windows(self) -> int:
        """W."""
        return self.edges.size - 1

    def window_from(self, unit: int) -> int:
        """Return the window that a unit of the lane falls into; W where the lane is over."""
        return int(np.searchsorted(self.units[1:], unit, side="right"))

    def segments(self, window: int) -> range:
        """Return the segments of a window."""
        return range(int(self.edges[window]), int(self.edges[window + 1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """The order of one epoch, fixed by seed, epoch, lanes, window_batches and unit."""

    table: RecordBatches
    seed: int
    epoch: int
    window_batches: int
    unit: Unit
    row_tokens: Callable[[int], NDArray[np.int64]]
    """Tokens of each row of a record batch; asked for where tokens are the unit and a border of
    lanes falls into it."""
    batches: NDArray[np.int64]
    """[R], the record batches in the epoch's order."""
    starts: NDArray[np.int64]
    """[R + 1], the unit each begins with."""
    priority: NDArray[np.int64]
    """[R], a permutation, by which a lane reads its record batches."""
    spread: NDArray[np.int64]
    """[L], a lane's place among the lanes when their turns come."""
    borders: NDArray[np.int64]
    """[L + 1], the unit each lane begins with, and N."""

    @staticmethod
    def of(
        table: RecordBatches,
        *,
        seed: int,
        epoch: int,
        lanes: int,
        window_batches: int,
        unit: Unit,
        row_tokens: Callable[[int], NDArray[np.int64]],
    ) -> EpochOrder:
        """Permute the shards or record batches of `table` for an epoch and cut it into lanes."""
        key = derive_key(seed, "order", epoch)
        shards = np.unique(table.shard)
        priority = permutation(table.rows.size, key)
        if shards.size >= lanes:
            place = np.empty(int(shards[-1]) + 1, dtype=np.int64)
            place[shards] = permutation(shards.size, key, stream=1)
            batches = np.argsort(place[table.shard], kind="stable")
        else:
            batches = priority
        starts = np.concatenate([[0], np.cumsum(table.units(unit)[batches])])
        spread = spread_of(lanes)
        return EpochOrder(
            table=table,
            seed=seed,
            epoch=epoch,
            window_batches=window_batches,
            unit=unit,
            row_tokens=functools.lru_cache(maxsize=2 * lanes)(row_tokens),
            batches=batches,
            starts=starts,
            priority=priority,
            spread=spread,
            borders=np.concatenate([[0], np.cumsum(turns(starts[-1:], spread, lanes))]),
        )

    @property
    def total(self) -> int:
        """N, the units of the epoch."""
        return int(self.starts[-1])

    def lane_units(self, lanes: range, cursors: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return up to which unit of its own each lane was asked when so many units have passed.

        [lanes, cursors] int64. Rows whose turn is before it are taken; at the end of the epoch
        that is every row.
        """
        places = self.spread[lanes.start : lanes.stop, None]
        asked = turns(cursors[None, :], places, self.spread.size)
        if self.unit == "tokens":
            rows = int(self.table.rows.sum())
            asked = asked - places * self.total // (rows * self.spread.size)
        return np.where(cursors >= self.total, _EVERYTHING, asked)

    def lane(self, lane: int) -> LaneOrder:
        """Return what a lane reads, in order."""
        low, high = int(self.borders[lane]), int(self.borders[lane + 1])
        first = int(np.searchsorted(self.starts, low, side="right")) - 1
        last = int(np.searchsorted(self.starts, high, side="left"))
        batch = self.batches[first:last]
        start, end = np.zeros_like(batch), self.table.rows[batch]
        units = self.table.units(self.unit)[batch]
        if batch.size:
            start[0], end[-1] = self._row_from(first, low), self._row_from(last - 1, high)
            for at in {0, batch.size - 1}:
                units[at] = self._units_between(int(batch[at]), int(start[at]), int(end[at]))
        kept = start < end
        batch, start, end, units = (one[kept] for one in (batch, start, end, units))
        order = np.argsort(self.priority[batch])
        window = self.window_batches
        shortened = int(self.spread[lane]) * window // self.spread.size
        edges = np.arange(0, batch.size + shortened + window, window) - shortened
        edges = np.unique(edges.clip(0, batch.size))
        before = np.concatenate([[0], np.cumsum(units[order])])
        return LaneOrder(
            batch=batch[order],
            start=start[order],
            end=end[order],
            edges=edges,
            units=before[edges],
        )

    def window_rows(
        self, number: int, lane: LaneOrder, window: int, row_tokens: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the order of a window's rows and the unit of the lane each is taken at, int64.

        `row_tokens` are the tokens of its rows as they were read.
        """
        first, end = lane.units[window : window + 2].tolist()
        # Where rows would begin if all had the window's mean: short and long ones take turns, so
        # that lanes that keep one rhythm give more equal parts than lanes that count each token.
        units = first + np.arange(row_tokens.size) * (end - first) // row_tokens.size
        key = derive_key(self.seed, "order", self.epoch, number, window)
        shift = int(self.spread[number]) * STRATA // self.spread.size
        # One turn for a mean row, so that all lanes come to the same turn at the same time.
        turns = units * int(self.table.rows.sum()) // self.total + shift
        return balanced(permutation(row_tokens.size, key), row_tokens, turns), units

    def reads(self, lanes: range, cursor: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the record batches that some lanes read from `cursor` on, and how often each.

        In the order in which their windows begin, which is about that of their first use.
        """
        begins, found = [], []
        asked = self.lane_units(lanes, np.array([cursor]))[:, 0].tolist()
        for number, unit in zip(lanes, asked, strict=True):
            lane = self.lane(number)
            for window in range(lane.window_from(unit), lane.windows):
                segments = lane.segments(window)
                begins.append(np.full(len(segments), lane.units[window]))
                found.append(lane.batch[segments.start : segments.stop])
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        batches = np.concatenate(found)[np.argsort(np.concatenate(begins), kind="stable")]
        unique, first, uses = np.unique(batches, return_index=True, return_counts=True)
        in_order = np.argsort(first)
        return unique[in_order], uses[in_order]

    def _row_from(self, place: int, unit: int) -> int:
        """Return the first row of the record batch at a place that begins at `unit` or later."""
        within = unit - int(self.starts[place])
        batch = int(self.batches[place])
        if self.unit == "sequences":
            return min(within, int(self.table.rows[batch]))
        if within >= self.table.tokens[batch]:
            return int(self.table.rows[batch])
        if within == 0:
            return 0
        tokens = self.row_tokens(batch)
        return int(np.searchsorted(np.cumsum(tokens) - tokens, within, side="left"))

    def _units_between(self, batch: int, start: int, end: int) -> int:
        if self.unit == "sequences":
            return end - start
        if (start, end) == (0, self.table.rows[batch]):
            return int(self.table.tokens[batch])
        return int(self.row_tokens(batch)[start:end].sum())


def turns(units: NDArray[np.int64], place: NDArray[np.int64], lanes: int) -> NDArray[np.int64]:
    """Return how many of the first `units` turns were those of the lane at `place`."""
    counts: NDArray[np.int64] = (units + lanes - 1 - place) // lanes
    return counts


@functools.cache
def spread_of(lanes: int) -> NDArray[np.int64]:
    """Return each lane's place when lanes are ordered by their number's bits, reversed."""
    bits = max(lanes - 1, 1).bit_length()
    reversed_bits = [int(f"{lane:0{bits}b}"[::-1], 2) for lane in range(lanes)]
    spread = np.argsort(np.argsort(reversed_bits))
    spread.flags.writeable = False
    return spread
