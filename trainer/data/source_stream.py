"""One rank's part of one instance set: batches for so many units, from any point on, for ever."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.config import MaskingConfig
from pipeline.instance_set import InstanceSet
from trainer.data.assembly import Instances, batch_span, gather, make_batch
from trainer.data.batch import Batch
from trainer.data.epoch_order import EpochOrder, RecordBatches, Unit
from trainer.data.lanes import RankLanes
from trainer.data.read_ahead import Read, ReadAhead
from trainer.data.record_cache import RecordCache


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSettings:
    """What fixes the order and the masks of a run, beside its data."""

    seed: int
    rules: MaskingConfig
    lanes: int
    window_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How shards are read; nothing of it changes a batch."""

    read_ahead_bytes: int
    pool: ThreadPoolExecutor
    cache: RecordCache | None


class SourceStream:
    """The rows of `own_lanes` from (epoch, cursor) on.

    Memory: a window of each lane and `read_ahead_bytes`, and where a border of lanes falls into a
    record batch, that record batch.
    """

    def __init__(
        self,
        instances: InstanceSet,
        settings: OrderSettings,
        unit: Unit,
        reading: Reading,
        *,
        own_lanes: range,
        epoch: int,
        cursor: int,
    ) -> None:
        self._set = instances
        self._settings = settings
        self._unit = unit
        self._cache = reading.cache
        self._own_lanes = own_lanes
        self._shards = instances.shards("train")
        self._table = RecordBatches.of(self._shards)
        self._orders: dict[int, EpochOrder] = {}
        self._epoch = epoch
        self._cursor = cursor
        self._total = int(self._table.units(unit).sum())
        self._reads: ReadAhead[Instances] = ReadAhead(
            self._fetch,
            self._upcoming(epoch, cursor),
            limit_bytes=reading.read_ahead_bytes,
            pool=reading.pool,
        )
        self._lanes = self._open_epoch()

    def take(self, units: Sequence[int]) -> list[list[Batch]]:
        """Return this rank's rows of steps of so many units each, masked; a batch for each epoch.

        The batches of steps of one epoch share their memory.
        """
        parts: list[list[Batch]] = [[] for _ in units]
        ends = self._cursor + np.cumsum(units, dtype=np.int64)
        while True:
            # What the epoch has not, the next epoch gives, so that no step is smaller.
            for step, batch in self._take_until(np.minimum(ends, self._total)):
                parts[step].append(batch)
            self._cursor = min(int(ends[-1]), self._total)
            if self._cursor < self._total:
                return parts
            self._orders.pop(self._epoch, None)
            self._epoch, self._cursor = self._epoch + 1, 0
            self._lanes = self._open_epoch()
            ends = np.maximum(ends - self._total, 0)
            if ends[-1] == 0:
                return parts

    def _take_until(self, cursors: NDArray[np.int64]) -> Iterator[tuple[int, Batch]]:
        taken = self._lanes.take(cursors.tolist())
        if not taken:
            return
        instances, ends = gather(taken)
        batch = make_batch(
            instances,
            seed=self._settings.seed,
            purpose="mask",
            epoch=self._epoch,
            rules=self._settings.rules,
            classes=self._set.token_classes,
        )
        for step, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            if start < end:
                yield step, batch_span(batch, start, end)

    def _open_epoch(self) -> RankLanes:
        epoch = self._epoch
        return RankLanes(
            self._order(epoch),
            self._own_lanes,
            self._cursor,
            lambda batch: self._reads.get(epoch, batch),
        )

    def _order(self, epoch: int) -> EpochOrder:
        # Read ahead of the epoch that is handed out, so there may be some.
        if epoch not in self._orders:
            self._orders[epoch] = EpochOrder.of(
                self._table,
                seed=self._settings.seed,
                epoch=epoch,
                lanes=self._settings.lanes,
                window_batches=self._settings.window_batches,
                unit=self._unit,
                row_tokens=self._row_tokens,
            )
        return self._orders[epoch]

    def _upcoming(self, epoch: int, cursor: int) -> Iterator[Read | None]:
        id_bytes = 2 if self._set.vocab_size <= 1 << 16 else 4
        while True:
            while epoch > self._epoch + 1:  # a small set would be read for many epochs at once
                yield None
            batches, uses = self._order(epoch).reads(self._own_lanes, cursor)
            for batch, count in zip(batches.tolist(), uses.tolist(), strict=True):
                size = int(self._table.tokens[batch]) * id_bytes
                yield Read(epoch=epoch, batch=batch, uses=count, bytes=size)
            epoch, cursor = epoch + 1, 0

    def _fetch(self, batch: int) -> Instances:
        shard, number = self._shards[self._table.shard[batch]], int(self._table.number[batch])
        message = (
            self._set.read_message(shard, number)
            if self._cache is None
            else self._cache.read_message(self._set, shard, number)
        )
        return Instances.of(self._set.decode(message), int(self._table.first_instance[batch]))

    def _row_tokens(self, batch: int) -> NDArray[np.int64]:
        shard = self._shards[self._table.shard[batch]]
        return self._set.read_row_tokens(shard, int(self._table.number[batch]))
