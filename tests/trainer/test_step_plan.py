from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from trainer.schedule import Budget, learning_rate
from trainer.settings.schedule import ScheduleConfig
from trainer.step_plan import PlannedPhase, StepPlan


def phase(share: float, size: int, peak: float = 1.0, tokens: float = 10.0) -> PlannedPhase:
    return PlannedPhase(share=share, batch_size=size, peak=peak, tokens_per_unit=tokens)


def plan_of(
    *phases: PlannedPhase,
    unit: Literal["steps", "tokens"] = "steps",
    total: int = 10,
    initial: int = 0,
    **schedule: Any,
) -> StepPlan:
    return StepPlan(
        phases,
        budget=Budget(unit=unit, total=total),
        schedule=ScheduleConfig(**{"warmup_steps": 0, **schedule}),
        initial_batch_size=initial,
    )


def test_one_phase_of_steps_is_the_schedule_itself() -> None:
    plan = plan_of(phase(1.0, 8, peak=2.0), warmup_steps=3, decay="cosine")
    schedule = ScheduleConfig(warmup_steps=3, decay="cosine")
    budget = Budget(unit="steps", total=10)
    assert plan.total_steps == 10 and plan.phase_starts == [0]
    for step in range(10):
        expected = learning_rate(step, step + 1, budget=budget, peak=2.0, schedule=schedule)
        assert plan.learning_rate(step) == expected
        assert (plan.batch_size(step), plan.phase(step)) == (8, 0)


def test_a_million_steps_with_a_growing_batch_are_planned_at_once() -> None:
    plan = plan_of(
        phase(0.9, 4096),
        phase(0.1, 1024),
        total=1_000_000,
        initial=256,
        batch_size_warmup_steps=20_000,
    )
    assert plan.total_steps == 1_000_000 and plan.phase_starts == [0, 900_000]
    sizes = [plan.batch_size(step) for step in range(0, 20_001, 100)]
    assert sizes == sorted(sizes) and sizes[0] == 256 and sizes[-1] == 4096
    assert plan.batch_size(899_999) == 4096 and plan.batch_size(900_000) == 1024
    assert plan.phase_steps(1) == 100_000


@settings(deadline=None, max_examples=60)
@given(
    shares=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 64), min_size=4, max_size=4),
    tokens=st.lists(st.floats(1.0, 90.0), min_size=4, max_size=4),
    initial=st.integers(1, 64),
    warmup=st.integers(0, 9_000),
)
def test_a_budget_of_tokens_is_spent_and_passed_by_less_than_a_batch(
    shares: list[int], sizes: list[int], tokens: list[float], initial: int, warmup: int
) -> None:
    total = 200_000
    phases = [
        phase(share / sum(shares), size, tokens=mean)
        for share, size, mean in zip(shares, sizes, tokens, strict=False)
    ]
    plan = plan_of(
        *phases, unit="tokens", total=total, initial=initial, batch_size_warmup_tokens=warmup
    )
    done = 0.0
    ends = [sum(shares[: number + 1]) / sum(shares) * total for number in range(len(shares))]
    for step in range(plan.total_steps):
        number = plan.phase(step)
        size = plan.batch_size(step)
        assert done < ends[number] + 1 and (number == 0 or done >= ends[number - 1] - 1)
        assert min(initial, sizes[number]) <= size <= max(initial, sizes[number])
        assert 0.0 <= plan.learning_rate(step) <= 1.0
        done += max(1, round(size * tokens[number]))
    assert total <= done <= total + max(1, round(size * tokens[number]))
    assert plan.phase_starts == sorted(plan.phase_starts)
    assert sum(plan.phase_steps(number) for number in range(len(phases))) == plan.total_steps


def test_each_phases_peak_scales_the_one_schedule() -> None:
    plan = plan_of(phase(0.5, 8, peak=4.0), phase(0.5, 8, peak=1.0), decay="linear")
    rates = [plan.learning_rate(step) for step in range(10)]
    shares = [(10 - step) / 10 for step in range(10)]
    expected = [4.0 * one for one in shares[:5]] + shares[5:]
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((0.5, 0.4), r"phases\.share = \[0\.5, 0\.4\]: must add up to 1"),
        ((0.99, 0.01), r"phases\.1\.share = 0\.01: is nothing of a run of 10"),
        ((math.nan, 0.5), r"phases\.share = .*nan"),
    ],
)
def test_shares_that_make_no_whole_run_are_refused(shares: tuple[float, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(*(phase(share, 8) for share in shares))
