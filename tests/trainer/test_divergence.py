from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from trainer.divergence import LossWatch
from trainer.settings.divergence import DivergenceConfig

CONFIG = DivergenceConfig(window_steps=5, deviations=3.0, margin_nats=0.5)


def test_no_loss_jumps_before_there_is_a_whole_window() -> None:
    watch = LossWatch(CONFIG, [2.0] * 4)
    assert watch.limit == math.inf
    watch.add(2.0)
    assert watch.limit == 2.5


def test_a_quiet_loss_may_rise_by_the_margin_and_a_noisy_one_by_deviations() -> None:
    assert LossWatch(CONFIG, [2.0, 2.1, 2.0, 1.9, 2.0]).limit == pytest.approx(2.5)
    # Median 3, median deviation 1.
    assert LossWatch(CONFIG, [1.0, 2.0, 3.0, 4.0, 5.0]).limit == pytest.approx(6.0)


def test_only_the_last_window_counts_and_one_outlier_moves_nothing() -> None:
    watch = LossWatch(CONFIG, [9.0] * 5)
    for loss in (2.0, 2.0, 2.0, 2.0, 100.0):
        watch.add(loss)
    assert watch.losses == [2.0, 2.0, 2.0, 2.0, 100.0]
    assert watch.limit == 2.5


def test_another_phase_begins_without_a_limit() -> None:
    watch = LossWatch(CONFIG, [2.0] * 5)
    watch.clear()
    assert watch.losses == [] and watch.limit == math.inf


def test_an_infinite_margin_turns_the_rule_off() -> None:
    config = DivergenceConfig(window_steps=2, margin_nats=math.inf)
    assert LossWatch(config, [1.0, 1.0]).limit == math.inf


def test_a_training_curve_with_noise_never_jumps_by_the_defaults() -> None:
    draw = np.random.default_rng(0)
    watch = LossWatch(DivergenceConfig())
    curve = 2.0 + 8.0 * np.exp(-np.arange(3_000) / 300) + 0.15 * draw.standard_normal(3_000)
    for loss in curve:
        assert loss <= watch.limit
        watch.add(float(loss))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window_steps": 1}, "divergence.window_steps = 1"),
        ({"deviations": 0.0}, "divergence.deviations = 0.0"),
        ({"deviations": math.inf}, "divergence.deviations = inf"),
        ({"margin_nats": math.nan}, "divergence.margin_nats = nan"),
        ({"max_rollbacks": -1}, "divergence.max_rollbacks = -1"),
    ],
)
def test_value_out_of_range_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DivergenceConfig(**values)
