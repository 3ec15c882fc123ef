"""What each update of a run is to be: its phase, the size of its batch, its learning rate.

A pure function of the configuration and of how long the instances are, known before the first
update: so nothing of it is kept in a checkpoint, and no restart or world size changes it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.config import require
from trainer.schedule import Budget, batch_size, learning_rate
from trainer.settings.phase import phase_ends
from trainer.settings.schedule import ScheduleConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPhase:
    """A phase as the plan takes it."""

    share: float
    """Of the budget; those of all phases add up to 1."""
    batch_size: int
    """Units of one update once the batch is warmed up."""
    peak: float
    """Peak learning rate."""
    tokens_per_unit: float
    """Mean tokens of a unit of its batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """Updates one after another with batches of one size."""

    first: int
    phase: int
    batch_size: int
    before: int
    """Budget spent before the first one."""
    each: int
    """Budget that each of them spends."""


class StepPlan:
    """The updates of a run, counted from 0.

    A budget of tokens is spent by the mean length of the instances: as an epoch has each of them
    once, the tokens seen at the end differ from it by no more than the lengths of the last epoch's
    part do from the mean.

    Raises ConfigError for shares that do not add up to 1 and for a phase without an update.
    """

    def __init__(
        self,
        phases: Sequence[PlannedPhase],
        *,
        budget: Budget,
        schedule: ScheduleConfig,
        initial_batch_size: int,
    ) -> None:
        self._phases = tuple(phases)
        self._budget = budget
        self._schedule = schedule
        self._segments: list[_Segment] = []
        self.phase_starts: list[int] = []
        """The first update of each phase."""
        warmup = budget.batch_size_warmup(schedule)
        ends = phase_ends([phase.share for phase in phases], budget.total)
        step = done = 0
        for number, (phase, end) in enumerate(zip(phases, ends, strict=True)):
            require(
                done < end,
                f"phases.{number}.share",
                phase.share,
                f"is less than one batch of phase {number}; raise it or lower the batch size",
            )
            self.phase_starts.append(step)
            while done < end:
                size = batch_size(
                    done,
                    budget=budget,
                    schedule=schedule,
                    full=phase.batch_size,
                    initial=initial_batch_size or phase.batch_size,
                )
                each = 1
                if budget.unit == "tokens":
                    each = max(1, round(size * phase.tokens_per_unit))
                updates = 1 if done < warmup else -(-(end - done) // each)
                self._segments.append(
                    _Segment(first=step, phase=number, batch_size=size, before=done, each=each)
                )
                step += updates
                done += updates * each
        self.total_steps = step
        """Updates of the whole run."""
        self._firsts = [segment.first for segment in self._segments]

    def phase(self, step: int) -> int:
        """Return the number of the phase that an update belongs to."""
        return self._at(step).phase

    def phase_steps(self, phase: int) -> int:
        """Return the updates of a phase."""
        ends = [*self.phase_starts[1:], self.total_steps]
        return ends[phase] - self.phase_starts[phase]

    def batch_size(self, step: int) -> int:
        """Return the units of an update's global batch."""
        return self._at(step).batch_size

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of an update."""
        segment = self._at(step)
        before = segment.before + (step - segment.first) * segment.each
        return learning_rate(
            before,
            before + segment.each,
            budget=self._budget,
            peak=self._phases[segment.phase].peak,
            schedule=self._schedule,
        )

    def _at(self, step: int) -> _Segment:
        return self._segments[bisect.bisect_right(self._firsts, step) - 1]
