"""Learning rate of a step; a function of the global step only, never of the world size."""

from __future__ import annotations

import math

from pipeline.config import require
from trainer.schedule_config import ScheduleConfig


def learning_rate(step: int, *, total_steps: int, peak: float, schedule: ScheduleConfig) -> float:
    """Return the learning rate of update `step`, counted from 0.

    It rises linearly to `peak`, which the last warm-up step has, and falls towards zero, which
    would be that of step `total_steps`: no update has a rate of zero.

    Raises ConfigError when the warm-up is not shorter than the run.
    """
    warmup = schedule.warmup_steps
    require(
        warmup < total_steps,
        "schedule.warmup_steps",
        warmup,
        f"must be below the run's {total_steps} steps",
    )
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule.decay == "constant":
        return peak
    remaining = max(0.0, (total_steps - step) / (total_steps - warmup))
    if schedule.decay == "cosine":
        return peak * 0.5 * (1.0 - math.cos(math.pi * remaining))
    return peak * remaining
