from __future__ import annotations

import pytest

from pipeline.errors import ConfigError
from trainer.schedule import learning_rate
from trainer.schedule_config import ScheduleConfig


def rates(total_steps: int, schedule: ScheduleConfig) -> list[float]:
    return [
        learning_rate(step, total_steps=total_steps, peak=2.0, schedule=schedule)
        for step in range(total_steps)
    ]


def test_linear_rises_to_the_peak_and_falls_to_just_above_zero() -> None:
    schedule = ScheduleConfig(warmup_steps=4, decay="linear")
    assert rates(8, schedule) == [0.5, 1.0, 1.5, 2.0, 2.0, 1.5, 1.0, 0.5]


def test_cosine_passes_half_the_peak_in_the_middle() -> None:
    schedule = ScheduleConfig(warmup_steps=0, decay="cosine")
    assert rates(4, schedule) == pytest.approx([2.0, 1.70710678, 1.0, 0.29289322])


def test_constant_stays_at_the_peak() -> None:
    assert rates(4, ScheduleConfig(warmup_steps=2, decay="constant")) == [1.0, 2.0, 2.0, 2.0]


def test_no_warmup_starts_at_the_peak() -> None:
    assert rates(2, ScheduleConfig(warmup_steps=0)) == [2.0, 1.0]


def test_rate_stays_at_zero_past_the_end() -> None:
    schedule = ScheduleConfig(warmup_steps=1)
    assert learning_rate(9, total_steps=5, peak=2.0, schedule=schedule) == 0.0


def test_warmup_as_long_as_the_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"schedule\.warmup_steps = 5: must be below"):
        learning_rate(0, total_steps=5, peak=1.0, schedule=ScheduleConfig(warmup_steps=5))
