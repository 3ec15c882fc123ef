"""Mixtures and phases as decisions: how many units of what each step takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import MaskingConfig
from pipeline.errors import ConfigError
from pipeline.instance_set import InstanceSet
from tests.trainer.instance_fixture import VOCABULARY, commit_instances, make_rows
from tests.trainer.loading import phase_of
from trainer.data.phases import Phase, Source, check_phases, divide
from trainer.data.plan import DataPlan, LoaderState


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[InstanceSet]:
    return [
        commit_instances(
            tmp_path_factory.mktemp("set"),
            VOCABULARY,
            [("train", make_rows(range(rows), None))],
            rows_per_batch=8,
            fingerprint=f"{rows:020d}",
        )
        for rows in (50, 20)
    ]


@settings(max_examples=200, deadline=None)
@given(
    weights=st.lists(st.floats(0.001, 1000), min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=40),
)
def test_sources_give_their_share_of_all_units_whatever_the_sizes_of_the_steps(
    weights: list[float], sizes: list[int]
) -> None:
    given_by = [0] * len(weights)
    for size in sizes:
        parts = divide(size, weights, given_by)
        assert sum(parts) == size and min(parts) >= 0
        given_by = [before + part for before, part in zip(given_by, parts, strict=True)]
        due = np.array(weights) / sum(weights) * sum(given_by)
        assert np.abs(np.array(given_by) - due).max() < len(weights)


def test_a_step_of_the_plan_follows_weights_and_warm_up(sets: list[InstanceSet]) -> None:
    phase = replace(
        phase_of(*sets, weights=[3.0, 1.0]), batch_size=lambda step: min(4 * (step + 1), 12)
    )
    plan = DataPlan([phase], 1)
    state = plan.start(None)
    taken = []
    for _ in range(6):
        taken.append(plan.step_units(state))
        state = plan.after(state)
    assert taken == [[3, 1], [6, 2], [9, 3], [9, 3], [9, 3], [9, 3]]
    assert [(one.epoch, one.cursor) for one in state.sources] == [(0, 45), (0, 15)]
    assert plan.epochs(state) == [0.9, 0.75]
    after = plan.after(state).sources
    assert [(one.epoch, one.cursor) for one in after] == [(1, 4), (0, 18)]


def test_phases_follow_each_other_at_their_step_and_the_last_one_ends(
    sets: list[InstanceSet],
) -> None:
    plan = DataPlan([phase_of(sets[0], steps=3), phase_of(sets[1], steps=2)], 1)
    state = plan.start(None)
    seen = []
    while not plan.is_over(state):
        seen.append((state.phase, state.step, state.sources[0].cursor))
        assert plan.start(LoaderState.from_json(state.to_json())) == state
        state = plan.after(state)
    assert seen == [(0, 0, 0), (0, 1, 8), (0, 2, 16), (1, 3, 0), (1, 4, 8)]
    assert plan.start(state) == state


def test_a_set_that_two_phases_read_goes_on_and_keeps_its_share(sets: list[InstanceSet]) -> None:
    phases = [
        phase_of(sets[0], steps=8),
        phase_of(*sets, weights=[3.0, 1.0], steps=4),
        phase_of(sets[1], steps=2),
    ]
    plan = DataPlan(phases, 1)
    state = plan.start(None)
    seen = []
    while not plan.is_over(state):
        seen.append([(one.epoch, one.cursor) for one in state.sources])
        assert plan.start(LoaderState.from_json(state.to_json())) == state
        if state.phase == 1:
            assert plan.step_units(state) == [6, 2]
        state = plan.after(state)
    assert seen[7:9] == [[(1, 6)], [(1, 14), (0, 0)]]
    assert seen[9:13] == [[(1, 20), (0, 2)], [(1, 26), (0, 4)], [(1, 32), (0, 6)], [(0, 8)]]
    by_tokens = phase_of(sets[0], batch_size=64, unit="tokens")
    other_unit = DataPlan([phases[0], by_tokens], 1)
    state = other_unit.start(None)
    while state.phase == 0:
        state = other_unit.after(state)
    assert (state.sources[0].epoch, state.sources[0].cursor) == (0, 0)


def test_skipping_passes_over_data_and_over_no_update(sets: list[InstanceSet]) -> None:
    plan = DataPlan([phase_of(sets[0], steps=30)], 1)
    start = plan.after(plan.start(None))
    skipped = plan.skip(start, 7)
    assert skipped.step == start.step
    for _ in range(7):
        start = plan.after(start)
    assert skipped.sources == start.sources


def test_a_state_of_other_phases_is_refused(sets: list[InstanceSet]) -> None:
    state = DataPlan([phase_of(sets[0])], 1).start(None)
    later = replace(state, step=4)
    changed = DataPlan([phase_of(sets[0], steps=3), phase_of(sets[0])], 1)
    with pytest.raises(ConfigError, match=r"step 4 in phase 0, the config has .* phase 1: "):
        changed.start(later)


def test_phases_that_no_model_can_take_are_refused(sets: list[InstanceSet], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training.phases = \[\]"):
        check_phases([])
    with pytest.raises(ConfigError, match=r"phases.0.sources = \[\]: must have at least one"):
        check_phases([phase_of()])
    with pytest.raises(ConfigError, match=r"training.phases.0.steps: is missing"):
        check_phases([phase_of(sets[0]), phase_of(sets[0])])
    with pytest.raises(ConfigError, match=r"sources.1.weight = 0.0: must be a finite number > 0"):
        check_phases([phase_of(*sets, weights=[1.0, 0.0])])
    rows = [("train", make_rows(range(20), None))]
    words = commit_instances(tmp_path / "a", [*VOCABULARY, "more"], rows, rows_per_batch=8)
    with pytest.raises(ConfigError, match=r"phases.1.sources.0: .*/a/.* vocabulary of 101 entries"):
        check_phases([phase_of(sets[0], steps=3), phase_of(words)])
    pairs = commit_instances(tmp_path / "b", VOCABULARY, rows, rows_per_batch=8, objective="sop")
    with pytest.raises(ConfigError, match=r'sources.1: .*/b/.* has the objective "sop"'):
        check_phases([phase_of(sets[0], pairs)])
    static = MaskingConfig(mode="static")
    masked = commit_instances(
        tmp_path / "c", VOCABULARY, [("train", make_rows(range(20), static))], rows_per_batch=8
    )
    with pytest.raises(
        ConfigError, match=r"sources.1: .*/c/.* masking.mode = 'static', .* masking.mode = 'dynami"
    ):
        check_phases([phase_of(sets[0], masked)])
    masking = {"mode": "static", "probability": 0.15}
    fewer, more = (
        InstanceSet(masked.generation, {**masked.manifest, "masking": one})
        for one in (masking, {**masking, "probability": 0.3})
    )
    check_phases([phase_of(fewer, fewer)])
    with pytest.raises(ConfigError, match=r"masking.probability = 0.3, .*probability = 0.15: stat"):
        check_phases([phase_of(fewer, steps=3), phase_of(more)])
    long = InstanceSet(sets[0].generation, {**sets[0].manifest, "max_seq_length": 512})
    with pytest.raises(ConfigError, match=r"rows of up to 512 tokens, .* positions for 128"):
        check_phases([phase_of(long)], max_seq_length=128)
    check_phases([phase_of(long)], max_seq_length=512)


def test_more_workers_than_instances_are_refused(sets: list[InstanceSet]) -> None:
    phase = phase_of(sets[1], batch_size=64, unit="tokens")
    DataPlan([phase], 20)
    with pytest.raises(ConfigError, match=r"workers = 21: must be at most the 20 training instan"):
        DataPlan([phase], 21)


def test_a_batch_of_fewer_tokens_than_a_row_is_refused(sets: list[InstanceSet]) -> None:
    DataPlan([phase_of(*sets, batch_size=64, unit="tokens")], 1)
    named = rf"training.batch_size = 63: must be at least 64 tokens, a row of {sets[0].uri}: "
    with pytest.raises(ConfigError, match=named):
        DataPlan([phase_of(*sets, batch_size=63, unit="tokens")], 1)
    growing = replace(phase_of(sets[0], unit="tokens", steps=20), batch_size=lambda step: 60 + step)
    with pytest.raises(ConfigError, match=r"training.initial_batch_size = 60: .* 64 tokens"):
        DataPlan([growing], 1)


def test_a_source_that_cannot_fill_its_part_of_one_batch_is_named(sets: list[InstanceSet]) -> None:
    sources = (Source(instances=sets[0]), Source(instances=sets[1], weight=3.0))
    phase = Phase(sources=sources, batch_size=lambda step: 8 + step, micro_batch_size=8, steps=30)
    with pytest.raises(ConfigError, match=r"batch_size = 37: its part of which is 28, .* has 20"):
        DataPlan([phase], 1)
