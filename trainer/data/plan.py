"""Which units of which set each step of a run takes: states in, states out, no I/O.

A loader's state says where a run stands in its data, whatever its world size was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.config import require
from pipeline.errors import ConfigError, CorruptError
from trainer.data.epoch_order import RecordBatches
from trainer.data.phases import Phase, check_phases, divide, set_name


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """Where a run stands in one instance set."""

    instances: str
    """Fingerprint and length of the set."""
    epoch: int
    cursor: int
    """Units of the epoch that were handed out. They were the lanes' turns one after another, so
    that this is the cursor of every lane."""
    phase_start: int = 0
    """Units of it, epochs included, that were handed out before its phase began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """Where a run stands in its data: before which step, and where in its phase's sources."""

    phase: int
    step: int
    """Update of the run that comes next."""
    sources: tuple[SourceState, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the form a checkpoint keeps."""
        return {**asdict(self), "sources": [asdict(one) for one in self.sources]}

    @staticmethod
    def from_json(state: Mapping[str, Any]) -> LoaderState:
        """Rebuild a state from `to_json`; CorruptError if its keys are others."""
        try:
            return LoaderState(
                phase=int(state["phase"]),
                step=int(state["step"]),
                sources=tuple(
                    SourceState(
                        instances=str(one["instances"]),
                        epoch=int(one["epoch"]),
                        cursor=int(one["cursor"]),
                        phase_start=int(one["phase_start"]),
                    )
                    for one in state["sources"]
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(
                f"loader state {state!r}: must have phase, step and sources ({error!r}); "
                "resume from another checkpoint"
            ) from None


class DataPlan:
    """Steps of some phases for `world_size` workers.

    Raises ConfigError for what cannot be served: a batch of more than an epoch, of fewer tokens
    than a row may have, or fewer units or instances than workers.
    """

    def __init__(self, phases: Sequence[Phase], world_size: int) -> None:
        check_phases(phases)
        self.phases = tuple(phases)
        self.tables = [
            [RecordBatches.of(source.instances.shards("train")) for source in phase.sources]
            for phase in phases
        ]
        """The record batches of each phase's sources."""
        self._units = [
            [int(table.units(phase.unit).sum()) for table in tables]
            for phase, tables in zip(phases, self.tables, strict=True)
        ]
        self._ends: list[int | None] = []
        first = 0
        for number, phase in enumerate(phases):
            self._check_batch(number, first, world_size)
            first += phase.steps or 0
            self._ends.append(first if phase.steps is not None else None)

    def start(self, state: LoaderState | None) -> LoaderState:
        """Return the state to begin with; ConfigError if it is one of other data or phases."""
        if state is None:
            return self._fresh(0, 0)
        before = [end for end in self._ends[:-1] if end is not None and end <= state.step]
        if state.phase != len(before):
            raise ConfigError(
                f"checkpoint stands before step {state.step} in phase {state.phase}, the config "
                f"has that step in phase {len(before)}: training.phases was changed; set it back, "
                "or start a new run"
            )
        sources = self.phases[state.phase].sources
        names = [set_name(source.instances) for source in sources]
        found = [one.instances for one in state.sources]
        if found != names:
            places = ", ".join(source.instances.uri for source in sources)
            raise ConfigError(
                f"checkpoint was trained on instances {', '.join(found)}; {places} is "
                f"{', '.join(names)}: resume with what it was trained on, or start a new run"
            )
        for one, total in zip(state.sources, self._units[state.phase], strict=True):
            if one.epoch < 0 or not 0 <= one.cursor < total:
                raise ConfigError(
                    f"checkpoint stands at unit {one.cursor} of epoch {one.epoch} of instances "
                    f"{one.instances}, an epoch has {total}: training.batch_unit was changed; set "
                    "it back, or start a new run"
                )
        return state

    def is_over(self, state: LoaderState) -> bool:
        """Return whether all steps of all phases are done."""
        end = self._ends[-1]
        return end is not None and state.step >= end

    def step_units(self, state: LoaderState) -> list[int]:
        """Return the units that the next step takes of each source of the state's phase."""
        phase = self.phases[state.phase]
        given = [
            one.epoch * total + one.cursor - one.phase_start
            for one, total in zip(state.sources, self._units[state.phase], strict=True)
        ]
        weights = [source.weight for source in phase.sources]
        return divide(phase.batch_size(state.step), weights, given)

    def after(self, state: LoaderState) -> LoaderState:
        """Return the state after the next step: at the end of a phase the start of the next.

        A set that both phases read goes on; any other begins with its epoch 0.
        """
        moved = replace(self._data_after(state), step=state.step + 1)
        if moved.step == self._ends[state.phase] and state.phase + 1 < len(self.phases):
            return self._next_phase(moved)
        return moved

    def skip(self, state: LoaderState, steps: int) -> LoaderState:
        """Return the state that passes over the data of `steps` steps, but over no update."""
        passed = state
        for number in range(steps):
            passed = self._data_after(replace(passed, step=state.step + number))
        return replace(passed, step=state.step)

    def epochs(self, state: LoaderState) -> list[float]:
        """Return how many epochs of each source of the state's phase were handed out."""
        return [
            one.epoch + one.cursor / total
            for one, total in zip(state.sources, self._units[state.phase], strict=True)
        ]

    def _data_after(self, state: LoaderState) -> LoaderState:
        sources = []
        parts = zip(state.sources, self.step_units(state), self._units[state.phase], strict=True)
        for one, taken, total in parts:
            epochs, cursor = divmod(one.cursor + taken, total)
            sources.append(replace(one, epoch=one.epoch + epochs, cursor=cursor))
        return replace(state, sources=tuple(sources))

    def _next_phase(self, state: LoaderState) -> LoaderState:
        before, after = self.phases[state.phase : state.phase + 2]
        fresh = self._fresh(state.phase + 1, state.step)
        if before.unit != after.unit:
            return fresh
        read: dict[str, list[SourceState]] = {}
        for one, total in zip(state.sources, self._units[state.phase], strict=True):
            gone_on = replace(one, phase_start=one.epoch * total + one.cursor)
            read.setdefault(one.instances, []).append(gone_on)
        # Of a set that a phase has twice, each goes on by itself.
        sources = tuple(
            read[one.instances].pop(0) if read.get(one.instances) else one for one in fresh.sources
        )
        return replace(fresh, sources=sources)

    def _fresh(self, phase: int, step: int) -> LoaderState:
        names = [set_name(source.instances) for source in self.phases[phase].sources]
        return LoaderState(
            phase=phase,
            step=step,
            sources=tuple(SourceState(instances=name, epoch=0, cursor=0) for name in names),
        )

    def _check_batch(self, number: int, first: int, world_size: int) -> None:
        phase = self.phases[number]
        size = phase.batch_size(first)
        require(
            size >= world_size,
            "training.batch_size",
            size,
            f"must be at least training.workers = {world_size}: the others would have nothing to "
            "do",
        )
        for source, table in zip(phase.sources, self.tables[number], strict=True):
            rows = int(table.rows.sum())
            require(
                rows >= world_size,
                "training.workers",
                world_size,
                f"must be at most the {rows} training instances of {source.instances.uri}",
            )
        # Of a batch that is warmed up the last is the largest.
        smallest, size = size, phase.batch_size(first + (phase.steps or 1 << 40) - 1)
        longest = max((one.instances for one in phase.sources), key=lambda one: one.max_seq_length)
        if phase.unit == "tokens":
            require(
                smallest >= longest.max_seq_length,
                "training.initial_batch_size" if smallest < size else "training.batch_size",
                smallest,
                f"must be at least {longest.max_seq_length} tokens, a row of {longest.uri}: a step "
                "could have no row at all",
            )
        weights = [source.weight for source in phase.sources]
        parts = divide(size, weights, [0] * len(weights))
        for source, part, total in zip(phase.sources, parts, self._units[number], strict=True):
            if part > total:
                share = "" if len(parts) == 1 else f"its part of which is {part}, "
                raise ConfigError(
                    f"training.batch_size = {size}: {share}{source.instances.uri} has {total} "
                    f"training {phase.unit}, less than one batch; add text or lower it"
                )
