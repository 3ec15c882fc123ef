"""Learning rate and batch size of an update: functions of the updates and tokens done before it.

Never of the world size, the micro-batches or the restarts. `done` is counted in the unit of the
run's length, updates or tokens, which `Budget` names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pipeline.config import require
from trainer.settings.schedule import ScheduleConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The length of a run."""

    unit: Literal["steps", "tokens"]
    total: int

    def done(self, *, steps: int, tokens: int) -> int:
        """Return how much of the budget is spent after so many updates on so many tokens."""
        return steps if self.unit == "steps" else tokens

    def warmup(self, schedule: ScheduleConfig) -> int:
        """Return the length of the learning rate's warm-up."""
        return schedule.warmup_steps if self.unit == "steps" else schedule.warmup_tokens

    def batch_size_warmup(self, schedule: ScheduleConfig) -> int:
        """Return the length of the batch size's warm-up."""
        if self.unit == "steps":
            return schedule.batch_size_warmup_steps
        return schedule.batch_size_warmup_tokens

    def require_schedule(self, schedule: ScheduleConfig) -> None:
        """Raise ConfigError for lengths in the other unit, and for a warm-up that never ends."""
        other = "tokens" if self.unit == "steps" else "steps"
        for name in ("warmup", "batch_size_warmup"):
            given = getattr(schedule, f"{name}_{other}")
            require(
                given == 0,
                f"schedule.{name}_{other}",
                given,
                f"must be 0: the run's length is training.total_{self.unit} = {self.total}, so "
                f"give schedule.{name}_{self.unit}",
            )
            length = getattr(schedule, f"{name}_{self.unit}")
            require(
                length < self.total,
                f"schedule.{name}_{self.unit}",
                length,
                f"must be below training.total_{self.unit} = {self.total}",
            )


def learning_rate(
    before: int, after: int, *, budget: Budget, peak: float, schedule: ScheduleConfig
) -> float:
    """Return the learning rate of the update that brings the run from `before` to `after`.

    It rises linearly to `peak`, which the last update of the warm-up has, and falls towards
    final_share of it, which an update after the run's last would have: no update of a run that
    falls to zero has a rate of zero.
    """
    warmup = budget.warmup(schedule)
    if before < warmup:
        return peak * min(1.0, after / warmup)
    start = warmup
    if schedule.decay == "wsd":
        start = max(warmup, round(budget.total * (1.0 - schedule.decay_share)))
    remaining = (budget.total - before) / (budget.total - start) if before > start else 1.0
    share = _decayed(max(0.0, remaining), schedule)
    return peak * (schedule.final_share + (1.0 - schedule.final_share) * share)


def _decayed(remaining: float, schedule: ScheduleConfig) -> float:
    """Return what is left of the rate's fall where `remaining`, in [0, 1], is left of the time."""
    match schedule.decay:
        case "linear":
            return remaining
        case "polynomial":
            return float(remaining**schedule.power)
        case "cosine":
            return 0.5 * (1.0 - math.cos(math.pi * remaining))
        case "wsd":
            return 1.0 - math.sqrt(1.0 - remaining)
        case "constant":
            return 1.0


def batch_size(
    done: int, *, budget: Budget, schedule: ScheduleConfig, full: int, initial: int
) -> int:
    """Return the size of the batch of the update after `done`.

    It grows linearly from `initial` to `full` during its warm-up (Brown et al. 2020, 2.3, who grow
    it by tokens).
    """
    warmup = budget.batch_size_warmup(schedule)
    return full if done >= warmup else initial + (full - initial) * done // warmup
