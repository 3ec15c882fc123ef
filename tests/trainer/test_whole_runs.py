"""Phases, budgets and batches of a whole training, and its resumption at any step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from pipeline.config import MaskingConfig
from pipeline.errors import ConfigError, InputError
from tests.trainer.small_training import (
    PHASES,
    commit_sets,
    last_state,
    make_rows,
    records,
    small_config,
    train,
    two_lengths,
)
from trainer.checkpoint import latest
from trainer.retention import read_best
from trainer.run_plan import open_sources, require_data, step_plan
from trainer.training_run import training_manifest


def test_phases_change_length_batch_and_peak_at_the_step_that_the_state_names(
    tmp_path: Path,
) -> None:
    instances = two_lengths(tmp_path)
    config = small_config(tmp_path, **PHASES, evaluation={"every_steps": 6})
    generation = train(config, instances)
    found = records(generation, "train")
    assert [one["phase"] for one in found] == [1] * 9 + [2] * 3
    assert [one["sequences"] for one in found] == [8] * 9 + [4] * 3
    linear = [(12 - step) / 10 for step in range(2, 12)]
    shape = [0.5, 1.0, *linear]
    peaks = [1e-2] * 9 + [5e-3] * 3
    rates = [peak * share for peak, share in zip(peaks, shape, strict=True)]
    assert [one["learning_rate"] for one in found] == pytest.approx(rates)
    # Rows of the second phase are twice as long.
    tokens = [one["tokens_seen"] for one in found]
    of_phases = tokens[8] / (9 * 8), (tokens[11] - tokens[8]) / (3 * 4)
    assert 8 <= of_phases[0] <= 16 <= of_phases[1] <= 32
    _, state = last_state(generation)
    assert state["phase_starts"] == [0, 9]
    assert state["loader"]["phase"] == 1
    manifest = training_manifest(config, generation, instances)
    assert manifest["phase_starts"] == [0, 9]
    assert "training_phase 2.0" in (tmp_path / generation.name("metrics.prom")).read_text()


def test_a_budget_of_tokens_sets_the_steps_the_phases_and_the_schedule(tmp_path: Path) -> None:
    instances = two_lengths(tmp_path)
    config = small_config(
        tmp_path,
        **PHASES,
        training={"total_steps": 0, "total_tokens": 2_000},
        schedule={"warmup_steps": 0, "warmup_tokens": 300, "decay": "cosine"},
    )
    plan = step_plan(config, open_sources(config, instances))
    generation = train(config, instances)
    found = records(generation, "train")
    assert len(found) == plan.total_steps
    assert found[-1]["tokens_seen"] == pytest.approx(2_000, rel=0.06)
    ends = [one["tokens_seen"] for one in found if one["phase"] == 1]
    assert ends[-1] == pytest.approx(1_500, rel=0.06)
    rising = [one["learning_rate"] for one in found[:3]]
    assert rising == pytest.approx([1e-2 * 96 / 300, 1e-2 * 192 / 300, 1e-2 * 288 / 300], rel=0.1)


def test_a_batch_of_tokens_is_warmed_up_by_tokens(tmp_path: Path) -> None:
    instances = two_lengths(tmp_path)
    config = small_config(
        tmp_path,
        instances={"max_seq_length": [16, 32]},
        training={
            "max_seq_length": 32,
            "total_steps": 0,
            "total_tokens": 1_600,
            "batch_unit": "tokens",
            "initial_batch_size": 50,
            "batch_size": 200,
            "micro_batch_size": 64,
        },
        schedule={"warmup_steps": 0, "batch_size_warmup_tokens": 600},
    )
    plan = step_plan(config, open_sources(config, instances))
    sizes = [plan.batch_size(step) for step in range(plan.total_steps)]
    assert sizes[:4] == [50, 62, 78, 97] and sizes[-4:] == [200] * 4
    assert sum(sizes[:-1]) < 1_600 <= sum(sizes)
    found = records(train(config, instances), "train")
    assert found[-1]["tokens_seen"] == pytest.approx(sum(sizes), abs=64)


def test_evaluation_masks_by_its_own_probability(tmp_path: Path) -> None:
    instances = two_lengths(tmp_path)
    config = small_config(
        tmp_path,
        **PHASES,
        masking={"probability": 0.3},
        evaluation={"masking_probability": 0.15},
        training={"total_steps": 4},
    )
    generation = train(config, instances)
    (evaluation,) = records(generation, "evaluation")
    rows = make_rows(16, 32, seed=1)
    maskable = rows.input_ids.size - 3 * rows.rows
    # round(probability x maskable) of each row.
    assert evaluation["masked_tokens"] == pytest.approx(0.15 * maskable, abs=rows.rows / 2)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_micro_batches_and_prefetching_change_nothing_but_rounding(
    tmp_path: Path, name: str
) -> None:
    found = []
    for number, training in enumerate(({"micro_batch_size": 8}, {"micro_batch_size": 3})):
        root = tmp_path / str(number)
        config = small_config(root, **PHASES, training={**training, "prefetch_steps": number + 1})
        ref, _ = latest(train(config, two_lengths(root)))
        assert ref is not None
        (path,) = root.glob(f"training/*/{ref.name}/{name}")
        found.append(safetensors.torch.load_file(path))
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"training": {"batch_size": 97}},
            "batch_size = 97: .* has 96 training sequences",
        ),
        (
            {"training": {"total_steps": 0, "total_tokens": 90}, "schedule": {"warmup_steps": 0}},
            r"phases\.1\.share = 0\.25: is less than one batch",
        ),
    ],
)
def test_data_too_small_for_a_batch_or_a_phase_are_refused_before_the_training(
    tmp_path: Path, tables: dict[str, Any], message: str
) -> None:
    instances = two_lengths(tmp_path)
    config = small_config(tmp_path, **PHASES, **tables)
    sources = open_sources(config, instances)
    with pytest.raises(ConfigError, match=message):
        require_data(config, sources, step_plan(config, sources))
    with pytest.raises(ConfigError, match=message):
        train(config, instances)


def test_a_set_without_held_out_instances_is_refused_before_the_training(tmp_path: Path) -> None:
    instances = two_lengths(tmp_path / "own")
    commit_sets(tmp_path / "other", {16: {"train": make_rows(96, 16)}})
    sources = [{}, {"root": str(tmp_path / "other")}]
    config = small_config(
        tmp_path / "own",
        instances={"max_seq_length": [16, 32]},
        phases=[
            {"max_seq_length": 16, "share": 0.5, "sources": sources},
            {"max_seq_length": 32, "share": 0.5},
        ],
    )
    opened = open_sources(config, instances)
    with pytest.raises(InputError, match=r"/other/instances/.*: no held_out instances of 16 tok"):
        require_data(config, opened, step_plan(config, opened))


def test_a_run_of_other_runs_sets_alone_has_their_masking(tmp_path: Path) -> None:
    instances = two_lengths(tmp_path / "own")
    sets = {16: {split: make_rows(96, 16) for split in ("train", "held_out")}}
    commit_sets(tmp_path / "other", sets, static_rules=MaskingConfig(mode="static"))
    sources = [{"root": str(tmp_path / "other")}]
    phases = [{"max_seq_length": 16, "share": 1.0, "sources": sources}]
    lengths = {"max_seq_length": [16, 32]}
    config = small_config(tmp_path / "own", instances=lengths, phases=phases)
    opened = open_sources(config, instances)
    named = r"/other/.* made with masking.mode = 'static', this run has masking.mode = 'dynamic'"
    with pytest.raises(ConfigError, match=named):
        require_data(config, opened, step_plan(config, opened))


def test_a_mixture_reads_another_runs_set_and_depends_on_it(tmp_path: Path) -> None:
    instances = two_lengths(tmp_path / "own")
    two_lengths(tmp_path / "other")
    sources = [{"weight": 3.0}, {"root": str(tmp_path / "other"), "weight": 1.0}]
    config = small_config(
        tmp_path / "own",
        instances={"max_seq_length": [16, 32]},
        phases=[{"max_seq_length": 16, "share": 1.0, "sources": sources}],
    )
    generation = train(config, instances)
    assert records(generation, "train")[-1]["epochs"] == pytest.approx([72 / 96, 24 / 96], abs=0.1)
    manifest = training_manifest(config, generation, instances)
    assert manifest["identity"]["mixed_instances"] == [["0123456789abcdef0123/16"]]
    # Both sets are evaluated; the figures over all are the first one's.
    evaluation = manifest["evaluation"]
    beside = ("by_source", "not_evaluated")
    whole = {name: value for name, value in evaluation.items() if name not in beside}
    assert list(evaluation["by_source"]) == ["2/corpus", "corpus"]
    assert whole == evaluation["by_source"]["corpus"] == evaluation["by_source"]["2/corpus"]


def test_the_best_checkpoint_and_those_of_every_n_steps_stay(tmp_path: Path) -> None:
    instances = two_lengths(tmp_path)
    training = {"checkpoint_seconds": 1e6, "keep_checkpoints": 1, "keep_every_steps": 5}
    tables = {**PHASES, "phases": [{"max_seq_length": 16, "share": 1.0}]}
    config = small_config(tmp_path, **tables, training=training, evaluation={"every_steps": 2})
    generation = train(config, instances)
    losses = {one["step"]: one["mlm_loss_nats"] for one in records(generation, "evaluation")}
    assert sorted(losses) == [2, 4, 6, 8, 10, 12]
    best = read_best(generation)
    assert best is not None
    assert (best.mlm_loss_nats, best.step) == min((loss, step) for step, loss in losses.items())
    names = (name for name, _ in generation.storage.list(generation.name("checkpoints")))
    left = {int(name.split("step-")[1][:9]) for name in names}
    assert left == {5, 10, 12, best.step}
