"""Shards to masked batches, in an order that depends on nothing but seed, epoch and lanes.

The global batch of a step is the same for any world size, any prefetch depth and any restart:
trainer.data.plan says how many units of which set it has, trainer.data.epoch_order which those
are. A rank serves a contiguous run of lanes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from pipeline.config import MaskingConfig, require
from pipeline.contract import ShardEntry
from pipeline.instance_rows import InstanceRows
from pipeline.instance_set import InstanceSet
from trainer.data.assembly import Instances, Taken, cut_batch, gather, join_batches, make_batch
from trainer.data.batch import Batch
from trainer.data.epoch_order import RecordBatches
from trainer.data.phases import Phase
from trainer.data.plan import DataPlan, LoaderState
from trainer.data.record_cache import RecordCache
from trainer.data.source_stream import OrderSettings, Reading, SourceStream

# Steps are assembled in chunks of about so many rows, and so many rows of each lane: what
# Python costs a chunk and a lane is then spread over rows enough, also at one row a step.
_CHUNK_ROWS = 1024
_CHUNK_ROWS_PER_LANE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatches:
    """One rank's part of a step, known whole before the step starts."""

    phase: int
    micro_batches: list[Batch]
    """Empty where none of the step's rows is in this rank's lanes."""
    state_after: LoaderState
    """Where to resume once this step is done."""


class Loader:
    """The steps of one rank; read, masked and cut in threads, `prefetch` steps ahead.

    Beyond the windows of the lanes, `read_ahead_bytes` of record batches lie in memory; `cache`
    keeps on disk what was read of an object store. Ends after the steps of the last phase, if it
    has a number of them.

    Raises ConfigError for phases or a layout that cannot be served, or a state of other data.
    What fails in a thread (CorruptError, StorageError) is raised to whoever takes the step.
    Close it, or use it in a `with`.
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        *,
        seed: int,
        rules: MaskingConfig,
        lanes: int,
        window_batches: int,
        rank: int,
        world_size: int,
        state: LoaderState | None = None,
        prefetch: int = 2,
        read_ahead_bytes: int = 1 << 26,
        read_threads: int = 2,
        cache: RecordCache | None = None,
    ) -> None:
        for name, value in (
            ("lanes", lanes),
            ("window_batches", window_batches),
            ("prefetch_steps", prefetch),
            ("read_ahead_bytes", read_ahead_bytes),
            ("read_threads", read_threads),
        ):
            require(value >= 1, f"training.{name}", value, "must be at least 1")
        require(0 <= rank < world_size, "rank", rank, f"must be in [0, {world_size})")
        require(
            world_size <= lanes,
            "training.workers",
            world_size,
            f"must be at most training.lanes = {lanes}, since a lane is served by one worker",
        )
        self._settings = OrderSettings(
            seed=seed, rules=rules, lanes=lanes, window_batches=window_batches
        )
        self._own_lanes = range(lanes * rank // world_size, lanes * (rank + 1) // world_size)
        self.plan = DataPlan(phases, world_size)
        start = self.plan.start(state)
        self._readers = ThreadPoolExecutor(read_threads, thread_name_prefix="loader-read")
        self._reading = Reading(read_ahead_bytes=read_ahead_bytes, pool=self._readers, cache=cache)
        self._steps = self._produce(start)
        # Each task makes one step, so the thread never waits for the consumer, only for work.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        self._ahead: deque[Future[StepBatches]] = deque()
        for _ in range(prefetch):
            self._ahead.append(self._thread.submit(next, self._steps))

    def __iter__(self) -> Iterator[StepBatches]:
        return self

    def __next__(self) -> StepBatches:
        """Return the next step; a failure, or the end, is told again by every later call."""
        made = self._ahead[0].result()
        self._ahead.popleft()
        self._ahead.append(self._thread.submit(next, self._steps))
        return made

    def close(self) -> None:
        """Stop reading ahead and wait for the threads' end."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._readers.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _produce(self, state: LoaderState) -> Iterator[StepBatches]:
        while not self.plan.is_over(state):
            number = state.phase
            phase = self.plan.phases[number]
            streams = [
                SourceStream(
                    source.instances,
                    self._settings,
                    phase.unit,
                    self._reading,
                    own_lanes=self._own_lanes,
                    epoch=at.epoch,
                    cursor=at.cursor,
                )
                for source, at in zip(phase.sources, state.sources, strict=True)
            ]
            while state.phase == number and not self.plan.is_over(state):
                states = self._chunk(state)
                units = [self.plan.step_units(one) for one in states]
                parts = [
                    stream.take(of_source)
                    for stream, of_source in zip(streams, zip(*units, strict=True), strict=True)
                ]
                for at, of_sources in zip(states, zip(*parts, strict=True), strict=True):
                    state = self.plan.after(at)
                    yield self._step(at, [one for part in of_sources for one in part], state)

    def _chunk(self, state: LoaderState) -> list[LoaderState]:
        """Return the states before each of the steps that are made together from `state` on."""
        phase, tables = self.plan.phases[state.phase], self.plan.tables[state.phase]
        rows = sum(int(table.rows.sum()) for table in tables)
        units = sum(int(table.units(phase.unit).sum()) for table in tables)
        lane_rows = max(_CHUNK_ROWS // len(self._own_lanes), _CHUNK_ROWS_PER_LANE)
        wanted = lane_rows * self._settings.lanes * units // rows
        states = []
        number = state.phase
        while wanted > 0 and state.phase == number and not self.plan.is_over(state):
            states.append(state)
            wanted -= phase.batch_size(state.step)
            state = self.plan.after(state)
        return states

    def _step(
        self, state: LoaderState, parts: Sequence[Batch], state_after: LoaderState
    ) -> StepBatches:
        phase = self.plan.phases[state.phase]
        micro_batches: list[Batch] = []
        if parts:
            batch = join_batches(parts)
            rows = batch.cu_seqlens.size - 1
            micro_batches = list(cut_batch(batch, 0, rows, phase.micro_batch_size, phase.unit))
        return StepBatches(phase=state.phase, micro_batches=micro_batches, state_after=state_after)


def evaluation_batches(
    instance_set: InstanceSet,
    *,
    seed: int,
    rules: MaskingConfig,
    rank: int,
    world_size: int,
    batch_size: int,
    max_instances: int | None = None,
) -> Iterator[tuple[int, Batch]]:
    """Yield a rank's part of the first `max_instances` held-out instances (None: of all).

    Each batch is of one source, whose number in `instance_set.sources` stands before it.

    Always the same instances in the same order under the same masks: those of epoch 0 of their
    own purpose, or the shards' static ones. Over all ranks each instance comes once. Batches
    have at most `batch_size` sequences and do not cross record batches.

    Raises InputError if there are no held-out instances, ConfigError for a value out of range.
    """
    require(0 <= rank < world_size, "rank", rank, f"must be in [0, {world_size})")
    require(batch_size >= 1, "evaluation.batch_size", batch_size, "must be at least 1")
    require(
        max_instances is None or max_instances >= 1,
        "evaluation.max_instances",
        max_instances,
        "must be at least 1",
    )
    shards = instance_set.shards("held_out")
    table = RecordBatches.of(shards)
    rows = int(table.rows.sum())
    rows = rows if max_instances is None else min(rows, max_instances)
    start, end = rows * rank // world_size, rows * (rank + 1) // world_size
    return _evaluate(instance_set, shards, table, seed, rules, range(start, end), batch_size)


def _evaluate(
    instance_set: InstanceSet,
    shards: Sequence[ShardEntry],
    table: RecordBatches,
    seed: int,
    rules: MaskingConfig,
    wanted: range,
    batch_size: int,
) -> Iterator[tuple[int, Batch]]:
    ends = np.cumsum(table.rows).tolist()
    for index, end in enumerate(ends):
        first = end - int(table.rows[index])
        start, stop = max(wanted.start, first), min(wanted.stop, end)
        if start >= stop:
            continue
        rows = instance_set.read_rows(shards[table.shard[index]], int(table.number[index]))
        instances = Instances.of(rows, int(table.first_instance[index]))
        for source, part in _by_source(rows, instances, start - first, stop - first):
            batch = make_batch(
                part,
                seed=seed,
                purpose="evaluation_mask",
                epoch=0,
                rules=rules,
                classes=instance_set.token_classes,
            )
            for one in cut_batch(batch, 0, part.count, batch_size, "sequences"):
                yield source, one


def _by_source(
    rows: InstanceRows, instances: Instances, start: int, stop: int
) -> Iterator[tuple[int, Instances]]:
    """Yield rows [start, stop) source by source."""
    if rows.sources is None:
        yield 0, instances.span(start, stop)
        return
    sources = rows.sources[start:stop]
    for source in np.unique(sources).tolist():
        of_source = start + np.flatnonzero(sources == source)
        taken = Taken(instances=instances, rows=of_source, counts=np.array([of_source.size]))
        yield source, gather([taken])[0]
