"""Shards to masked batches, in an order that depends on nothing but seed, epoch and lanes.

The global batch of a step is the same for any world size, any prefetch depth and any restart;
trainer.epoch_order says which instances it has. A rank serves a contiguous run of lanes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config import MaskingConfig, require
from pipeline.contract import ShardEntry
from pipeline.errors import ConfigError, CorruptError
from pipeline.instance_set import InstanceSet
from trainer.assembly import Instances, concatenate, cut_batch, make_batch
from trainer.batch import Batch
from trainer.epoch_order import EpochOrder, RecordBatches, sequences_in_step, steps_in_epoch
from trainer.lanes import RankLanes

# Steps are assembled in chunks of about so many rows, and so many rows of each lane: what
# Python costs a chunk and a lane is then spread over rows enough, also at one row a step.
_CHUNK_ROWS = 1024
_CHUNK_ROWS_PER_LANE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """Where a run stands in its data: the next step to be handed out."""

    epoch: int
    step: int
    """Step within the epoch."""
    instances: str
    """Fingerprint of the instance set."""

    def to_json(self) -> dict[str, Any]:
        """Return the form a checkpoint keeps."""
        return asdict(self)

    @staticmethod
    def from_json(state: Mapping[str, Any]) -> LoaderState:
        """Rebuild a state from `to_json`; CorruptError if its keys are others."""
        try:
            return LoaderState(
                epoch=int(state["epoch"]),
                step=int(state["step"]),
                instances=str(state["instances"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(
                f"loader state {state!r}: must have epoch, step and instances ({error!r}); "
                "resume from another checkpoint"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatches:
    """One rank's part of a step, known whole before the step starts."""

    micro_batches: list[Batch]
    """Empty where the last step of an epoch left this rank without sequences."""
    sequences: int
    """Sequences of the global batch, over all ranks."""
    state_after: LoaderState
    """Where to resume once this step is done."""


class Loader:
    """Endless steps of one rank; read, masked and cut in a thread, `prefetch` steps ahead.

    Raises ConfigError for a layout that cannot be served or a state of another instance set.
    What fails in the thread (CorruptError, StorageError) is raised to whoever takes the step.
    Close it, or use it in a `with`.
    """

    def __init__(
        self,
        instance_set: InstanceSet,
        *,
        seed: int,
        rules: MaskingConfig,
        lanes: int,
        window_batches: int,
        batch_size: int,
        micro_batch_size: int,
        rank: int,
        world_size: int,
        state: LoaderState | None = None,
        prefetch: int = 2,
    ) -> None:
        _check_layout(
            lanes=lanes,
            window_batches=window_batches,
            batch_size=batch_size,
            micro_batch_size=micro_batch_size,
            rank=rank,
            world_size=world_size,
            prefetch=prefetch,
        )
        self._set = instance_set
        self._seed = seed
        self._rules = rules
        self._lanes = lanes
        self._window_batches = window_batches
        self._batch_size = batch_size
        self._micro_batch_size = micro_batch_size
        self._own_lanes = range(lanes * rank // world_size, lanes * (rank + 1) // world_size)
        self._shards = instance_set.shards("train")
        self._table = RecordBatches.of(self._shards)
        self._rows = int(self._table.rows.sum())
        if self._rows < batch_size:
            raise ConfigError(
                f"training.batch_size = {batch_size}: {instance_set.uri} has {self._rows} training "
                "instances, less than one batch; add text or lower it"
            )
        self.steps_per_epoch = steps_in_epoch(self._rows, lanes=lanes, batch_size=batch_size)
        self._steps = self._produce(self._checked(state))
        # Each task makes one step, so the thread never waits for the consumer, only for work.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        self._ahead: deque[Future[StepBatches]] = deque()
        for _ in range(prefetch):
            self._ahead.append(self._thread.submit(next, self._steps))

    def __iter__(self) -> Iterator[StepBatches]:
        return self

    def __next__(self) -> StepBatches:
        """Return the next step; a failure is raised again by every later call."""
        made = self._ahead[0].result()
        self._ahead.popleft()
        self._ahead.append(self._thread.submit(next, self._steps))
        return made

    def close(self) -> None:
        """Stop reading ahead and wait for the thread's end."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _checked(self, state: LoaderState | None) -> LoaderState:
        fingerprint = self._set.generation.fingerprint
        if state is None:
            return LoaderState(epoch=0, step=0, instances=fingerprint)
        if state.instances != fingerprint:
            raise ConfigError(
                f"checkpoint was trained on instances {state.instances}, {self._set.uri} is "
                f"another set: resume with the set it was trained on, or start a new run"
            )
        if state.epoch < 0 or not 0 <= state.step < self.steps_per_epoch:
            raise ConfigError(
                f"checkpoint stands at step {state.step} of epoch {state.epoch}, an epoch has "
                f"{self.steps_per_epoch} steps: training.batch_size or training.lanes was changed; "
                "set it back, or start a new run"
            )
        return state

    def _produce(self, state: LoaderState) -> Iterator[StepBatches]:
        share = self._batch_size // self._lanes
        lane_rows = max(_CHUNK_ROWS // len(self._own_lanes), _CHUNK_ROWS_PER_LANE)
        chunk_steps = max(1, lane_rows // share)
        while True:
            order = EpochOrder.of(
                self._table,
                seed=self._seed,
                epoch=state.epoch,
                lanes=self._lanes,
                window_batches=self._window_batches,
            )
            lanes = RankLanes(
                self._set, self._shards, self._table, order, self._own_lanes, state.step * share
            )
            for first in range(state.step, self.steps_per_epoch, chunk_steps):
                steps = range(first, min(first + chunk_steps, self.steps_per_epoch))
                yield from self._chunk(lanes, state.epoch, steps)
            state = replace(state, epoch=state.epoch + 1, step=0)

    def _chunk(self, lanes: RankLanes, epoch: int, steps: range) -> Iterator[StepBatches]:
        share = self._batch_size // self._lanes
        pieces, counts = lanes.take(len(steps) * share)
        # Rows come lane by lane; a stable sort puts them step by step, lanes in order within.
        step_of_row = np.concatenate([np.arange(count) // share for count in counts])
        ends = np.cumsum(np.bincount(step_of_row, minlength=len(steps)))
        batch = self._masked(pieces, np.argsort(step_of_row, kind="stable"), epoch)
        for step, start, end in zip(steps, [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            is_last = step + 1 == self.steps_per_epoch
            yield StepBatches(
                micro_batches=(
                    []
                    if batch is None
                    else list(cut_batch(batch, start, end, self._micro_batch_size))
                ),
                sequences=sequences_in_step(
                    self._rows, lanes=self._lanes, batch_size=self._batch_size, step=step
                ),
                state_after=LoaderState(
                    epoch=epoch + 1 if is_last else epoch,
                    step=0 if is_last else step + 1,
                    instances=self._set.generation.fingerprint,
                ),
            )

    def _masked(
        self, pieces: list[Instances], order: NDArray[np.int64], epoch: int
    ) -> Batch | None:
        if not pieces:
            return None
        return make_batch(
            concatenate(pieces).take(order),
            seed=self._seed,
            purpose="mask",
            epoch=epoch,
            rules=self._rules,
            classes=self._set.token_classes,
        )


def evaluation_batches(
    instance_set: InstanceSet,
    *,
    seed: int,
    rules: MaskingConfig,
    rank: int,
    world_size: int,
    batch_size: int,
    max_instances: int | None = None,
) -> Iterator[Batch]:
    """Yield a rank's part of the first `max_instances` held-out instances (None: of all).

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
) -> Iterator[Batch]:
    ends = np.cumsum(table.rows).tolist()
    for index, end in enumerate(ends):
        first = end - int(table.rows[index])
        start, stop = max(wanted.start, first), min(wanted.stop, end)
        if start >= stop:
            continue
        rows = instance_set.read_rows(shards[table.shard[index]], int(table.number[index]))
        instances = Instances.of(rows, int(table.first_instance[index]))
        batch = make_batch(
            instances.span(start - first, stop - first),
            seed=seed,
            purpose="evaluation_mask",
            epoch=0,
            rules=rules,
            classes=instance_set.token_classes,
        )
        yield from cut_batch(batch, 0, stop - start, batch_size)


def _check_layout(
    *,
    lanes: int,
    window_batches: int,
    batch_size: int,
    micro_batch_size: int,
    rank: int,
    world_size: int,
    prefetch: int,
) -> None:
    for name, value in (
        ("lanes", lanes),
        ("window_batches", window_batches),
        ("batch_size", batch_size),
        ("micro_batch_size", micro_batch_size),
        ("prefetch", prefetch),
    ):
        require(value >= 1, f"training.{name}", value, "must be at least 1")
    require(
        batch_size % lanes == 0,
        "training.batch_size",
        batch_size,
        f"must be a multiple of training.lanes = {lanes}",
    )
    require(0 <= rank < world_size, "rank", rank, f"must be in [0, {world_size})")
    require(
        world_size <= lanes,
        "training.workers",
        world_size,
        f"must be at most training.lanes = {lanes}, since a lane is served by one worker",
    )
