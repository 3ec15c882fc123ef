"""A training that meets a bad batch, or a rate that breaks it, and what it leaves of that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from pipeline.commit import Generation
from pipeline.errors import TrainingError
from pipeline.instance_set import InstanceSet
from tests.trainer.poisoned import BATCH, ROWS, STEPS, config_at, instances_at
from tests.trainer.small_training import (
    last_state,
    records,
    stopped_after,
    train,
)
from trainer import pretrain
from trainer.checkpoint import committed, latest, load
from trainer.config import TrainerConfig
from trainer.data.epoch_order import EpochOrder, RecordBatches
from trainer.divergence import DivergenceError
from trainer.journal import read_journal
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.report.finished_run import metrics_of
from trainer.step import EvalResult
from trainer.training_run import training_manifest


def counter(generation: Generation, name: str) -> float:
    text = (Path(generation.root) / generation.name("metrics.prom")).read_text()
    families = text_string_to_metric_families(text)
    return {one.name: one.value for family in families for one in family.samples}[name]


def test_a_poisoned_batch_is_skipped_from_the_last_checkpoint_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    instances = instances_at(tmp_path)
    config = config_at(tmp_path)
    generation = train(config, instances)
    manifest = training_manifest(config, generation, instances)
    (rollback,) = manifest["rollbacks"]
    bad = rollback["from_step"]
    assert f"step {bad}: loss = " in rollback["reason"] and "jumped above" in rollback["reason"]
    # A checkpoint after every step: only the bad batch itself is lost.
    assert rollback["to_step"] == bad and rollback["skipped_sequences"] == BATCH
    assert manifest["steps"] == STEPS and manifest["sequences_seen"] == STEPS * BATCH
    assert [one["step"] for one in records(generation, "train")] == list(range(1, STEPS + 1))
    assert max(one["mlm_loss"] for one in records(generation, "train")[bad - 1 :]) < 1.5
    assert [one["from_step"] for one in records(generation, "rollback")] == [bad]
    assert f"back to step {bad}, and on without {BATCH} sequences" in caplog.text
    metrics = metrics_of(read_journal(generation), manifest)
    assert len(metrics.rollbacks) == 1 and metrics.restarts == ()
    assert counter(generation, "clozeline_training_rollbacks_total") == 1
    assert counter(generation, "clozeline_training_skipped_sequences_total") == BATCH


def test_the_window_up_to_the_bad_step_is_skipped_where_checkpoints_are_rare(
    tmp_path: Path,
) -> None:
    instances = instances_at(tmp_path)
    config = config_at(tmp_path, training={"checkpoint_seconds": 3600.0})
    generation = train(config, instances)
    _, state = last_state(generation)
    rollbacks = state["rollbacks"]
    # Before the first checkpoint the last good weights are the initial ones.
    assert rollbacks and all(one["to_step"] == 0 for one in rollbacks)
    for one in rollbacks:
        assert one["skipped_sequences"] == (one["from_step"] + 1) * BATCH
    handed_out = ROWS * state["loader"]["sources"][0]["epoch"]
    handed_out += state["loader"]["sources"][0]["cursor"]
    skipped = sum(one["skipped_sequences"] for one in rollbacks)
    assert handed_out == state["sequences_seen"] + skipped


def test_a_run_stopped_after_a_rollback_goes_on_to_the_same_end(tmp_path: Path) -> None:
    root = tmp_path / "whole"
    instances = instances_at(root)
    whole = train(config_at(root), instances)
    weights, state = last_state(whole)
    bad = state["rollbacks"][0]["from_step"]
    for step in (bad - 1, bad, bad + 1):
        again = stopped_after(step, root, tmp_path / f"stopped{step}")
        resumed = train(config_at(again), instances)
        found, found_state = last_state(resumed)
        assert found_state == state, step
        assert all(torch.equal(found[name], weights[name]) for name in weights), step
        assert [one["from_step"] for one in records(resumed, "rollback")] == [bad]


@pytest.mark.parametrize("rate", [1e6, 1e38])
def test_a_rate_that_breaks_the_model_ends_in_an_error_and_never_in_nan(
    tmp_path: Path, rate: float
) -> None:
    instances = instances_at(tmp_path, noise=range(0))
    config = config_at(tmp_path, optimizer={"learning_rate": rate}, divergence={"max_rollbacks": 2})
    with pytest.raises(TrainingError, match=r"step \d+: .* went back 2 times already .* lower"):
        train(config, instances)
    generation = Generation(config.root, "training", "a" * 20)
    assert len(records(generation, "rollback")) == 2
    assert not (tmp_path / generation.name("result.json")).exists()
    for one in records(generation, "train"):
        assert math.isfinite(one["mlm_loss"])
    ref, _ = latest(generation)
    if ref is not None:
        weights = load(generation, ref).model
        assert all(bool(torch.isfinite(one).all()) for one in weights.values())


def test_a_checkpoint_from_which_a_run_failed_twice_is_not_taken_again(tmp_path: Path) -> None:
    config = config_at(tmp_path / "run")
    first, second = batches_of_steps(config, instances_at(tmp_path / "order"), (20, 21))
    noise = [row for batch in (first, second) for row in range(batch * BATCH, (batch + 1) * BATCH)]
    generation = train(config, instances_at(tmp_path / "run", noise))
    _, state = last_state(generation)
    went_back = [(one["from_step"], one["to_step"]) for one in state["rollbacks"]]
    assert went_back == [(20, 20), (20, 19)]
    assert state["step"] == STEPS and state["sequences_seen"] == STEPS * BATCH
    assert [one["to_step"] for one in records(generation, "rollback")] == [20, 19]


@pytest.mark.parametrize("keep", [1, 2])
def test_what_was_gone_back_from_is_abandoned_whatever_is_kept(tmp_path: Path, keep: int) -> None:
    tables = {"training": {"keep_checkpoints": keep}}
    config = config_at(tmp_path / "run", **tables)
    first, second = batches_of_steps(config, instances_at(tmp_path / "order"), (20, 21))
    noise = [row for batch in (first, second) for row in range(batch * BATCH, (batch + 1) * BATCH)]
    generation = train(config, instances_at(tmp_path / "run", noise))
    _, state = last_state(generation)
    went_back = [(one["from_step"], one["to_step"]) for one in state["rollbacks"]]
    # With one kept there is none before it: it is taken again, and the second batch skipped too.
    assert went_back == [(20, 20), (20, 20 if keep == 1 else 19)]
    assert state["step"] == STEPS and state["sequences_seen"] == STEPS * BATCH
    assert [step for step, _ in committed(generation)] == list(range(STEPS, STEPS - keep, -1))


@pytest.mark.parametrize("step", [18, 19, 20, 21])
def test_stopped_after_going_back_twice_it_comes_to_the_same_end(tmp_path: Path, step: int) -> None:
    root = tmp_path / "whole"
    first, second = batches_of_steps(config_at(root), instances_at(tmp_path / "order"), (20, 21))
    noise = [row for batch in (first, second) for row in range(batch * BATCH, (batch + 1) * BATCH)]
    instances = instances_at(root, noise)
    weights, state = last_state(train(config_at(root), instances))
    again = stopped_after(step, root, tmp_path / "stopped")
    resumed = train(config_at(again), instances)
    found, found_state = last_state(resumed)
    assert found_state == state
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    assert [one["to_step"] for one in records(resumed, "rollback")] == [20, 19]


def batches_of_steps(
    config: TrainerConfig, instances: InstanceSet, steps: Sequence[int]
) -> list[int]:
    """The record batches that steps of the first epoch read."""
    order = EpochOrder.of(
        RecordBatches.of(instances.shards("train")),
        seed=config.seed,
        epoch=0,
        lanes=1,
        window_batches=1,
        unit="sequences",
        row_tokens=lambda batch: np.zeros(0, np.int64),
    )
    return [int(order.lane(0).batch[step]) for step in steps]


@pytest.mark.parametrize("seconds", [0.0, 1e6])
def test_weights_that_cannot_be_evaluated_are_gone_back_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    evaluate, failures = pretrain._evaluate, []

    def fails_once(run: pretrain.Run, model: EncoderForPreTraining, step: int) -> EvalResult:
        if step == STEPS and not failures:
            failures.append(step)
            raise DivergenceError("evaluation: masked_lm_loss = nan: not finite")
        return evaluate(run, model, step)

    monkeypatch.setattr(pretrain, "_evaluate", fails_once)
    instances = instances_at(tmp_path, noise=())
    config = config_at(
        tmp_path, training={"checkpoint_seconds": seconds}, divergence={"max_rollbacks": 1}
    )
    generation = train(config, instances)
    (rollback,) = training_manifest(config, generation, instances)["rollbacks"]
    # The last step's weights were saved before their evaluation; they are withdrawn.
    before = STEPS - 1 if seconds == 0.0 else 0
    assert (rollback["from_step"], rollback["to_step"]) == (STEPS, before)
    assert rollback["skipped_sequences"] == (STEPS - before) * BATCH
    assert (STEPS, 1) not in committed(generation) and (STEPS, 2) in committed(generation)
    assert [one["step"] for one in records(generation, "train")] == list(range(1, STEPS + 1))
