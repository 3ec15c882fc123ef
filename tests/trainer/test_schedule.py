from __future__ import annotations

import math
from typing import Any

import pytest

from pipeline.errors import ConfigError
from trainer.schedule import Budget, batch_size, learning_rate
from trainer.settings.schedule import ScheduleConfig


def rates(total: int, schedule: ScheduleConfig) -> list[float]:
    budget = Budget(unit="steps", total=total)
    return [
        learning_rate(step, step + 1, budget=budget, peak=2.0, schedule=schedule)
        for step in range(total)
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


def test_polynomial_raises_what_remains_to_its_power() -> None:
    schedule = ScheduleConfig(warmup_steps=0, decay="polynomial", power=2.0)
    assert rates(4, schedule) == pytest.approx([2.0, 2.0 * 0.75**2, 0.5, 2.0 * 0.25**2])


def test_wsd_stays_at_the_peak_and_falls_by_one_minus_the_root_in_its_last_share() -> None:
    schedule = ScheduleConfig(warmup_steps=2, decay="wsd", decay_share=0.4)
    falling = [2.0 * (1.0 - math.sqrt(done / 4)) for done in range(4)]
    assert rates(10, schedule) == pytest.approx([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, *falling])


@pytest.mark.parametrize("decay", ["linear", "cosine", "polynomial", "wsd"])
def test_the_rate_falls_to_its_final_share(decay: Any) -> None:
    schedule = ScheduleConfig(warmup_steps=0, decay=decay, final_share=0.25)
    budget = Budget(unit="steps", total=1000)
    last, past = (
        learning_rate(step, step + 1, budget=budget, peak=2.0, schedule=schedule)
        for step in (999, 1000)
    )
    assert 0.5 < last < 0.51
    assert past == 0.5


def test_by_tokens_the_rate_depends_on_the_tokens_alone() -> None:
    by_steps = ScheduleConfig(warmup_steps=4)
    by_tokens = ScheduleConfig(warmup_steps=0, warmup_tokens=4_000)
    budget = Budget(unit="tokens", total=8_000)
    found = [
        learning_rate(done, done + 1_000, budget=budget, peak=2.0, schedule=by_tokens)
        for done in range(0, 8_000, 1_000)
    ]
    assert found == rates(8, by_steps)
    # A batch that crosses the end of the warm-up is at the peak, not above it.
    assert learning_rate(3_500, 4_700, budget=budget, peak=2.0, schedule=by_tokens) == 2.0


def test_rate_stays_at_zero_past_the_end() -> None:
    budget = Budget(unit="steps", total=5)
    schedule = ScheduleConfig(warmup_steps=1)
    assert learning_rate(9, 10, budget=budget, peak=2.0, schedule=schedule) == 0.0


@pytest.mark.parametrize(
    ("unit", "lengths", "message"),
    [
        ("steps", {"warmup_steps": 5}, r"schedule\.warmup_steps = 5: must be below"),
        ("tokens", {"warmup_steps": 0, "warmup_tokens": 5}, r"warmup_tokens = 5: must be below"),
        ("tokens", {"warmup_steps": 4}, r"warmup_steps = 4: must be 0: .*total_tokens = 5"),
        ("steps", {"warmup_steps": 0, "warmup_tokens": 4}, r"warmup_tokens = 4: must be 0"),
        (
            "steps",
            {"warmup_steps": 0, "batch_size_warmup_tokens": 4},
            r"batch_size_warmup_tokens = 4: must be 0",
        ),
        (
            "steps",
            {"warmup_steps": 0, "batch_size_warmup_steps": 9},
            r"batch_size_warmup_steps = 9: must be below",
        ),
    ],
)
def test_a_warmup_as_long_as_the_run_or_in_the_other_unit_is_refused(
    unit: Any, lengths: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Budget(unit=unit, total=5).require_schedule(ScheduleConfig(**lengths))


def test_the_batch_grows_linearly_to_its_full_size() -> None:
    schedule = ScheduleConfig(warmup_steps=0, batch_size_warmup_steps=4)
    budget = Budget(unit="steps", total=8)
    sizes = [
        batch_size(step, budget=budget, schedule=schedule, full=40, initial=8) for step in range(6)
    ]
    assert sizes == [8, 16, 24, 32, 40, 40]
