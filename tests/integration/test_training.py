"""A training that lost workers or its driver ends as if nothing had happened."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.conftest import TrainedRun
from tests.integration.nodes import WORKER
from tests.integration.product import Command, module, started
from tests.integration.run_folder import copy_data, current, manifest
from trainer.checkpoint import latest
from trainer.training_run import open_instances, training_generation

pytestmark = pytest.mark.ray

STEPS = 30


def records(root: Path, kind: str) -> list[dict[str, Any]]:
    return records_of((current(root, "training") / "metrics.jsonl").read_text(), kind)


def records_of(journal: str, kind: str) -> list[dict[str, Any]]:
    lines = journal.split("\n")
    return [one for one in map(json.loads, filter(None, lines)) if one["kind"] == kind]


def trajectory(root: Path) -> list[dict[str, Any]]:
    return trajectory_of((current(root, "training") / "metrics.jsonl").read_text())


def trajectory_of(journal: str) -> list[dict[str, Any]]:
    """What was learned in every step, without the times and the attempt."""
    of_time = {"attempt", "data_wait_seconds", "seconds", "step_seconds", "tokens_per_second"}
    return [
        {name: value for name, value in one.items() if name not in of_time}
        for one in records_of(journal, "train")
    ]


def weights(root: Path) -> dict[str, bytes]:
    """The last checkpoint's tensors: name of the file -> its bytes."""
    checkpoint = manifest(root, "training")["checkpoint"]
    folder = current(root, "training") / "checkpoints"
    (found,) = folder.glob(f"step-{checkpoint['step']:09d}-attempt-{checkpoint['attempt']:04d}")
    return {path.name: path.read_bytes() for path in found.glob("*.safetensors")}


def attempts(root: Path) -> list[Path]:
    return sorted(root.glob("training/*/attempts/*.json"))


def stop_after_a_step(job: Command, root: Path, worker: psutil.Process) -> None:
    """Stop a worker when the first checkpoint is committed, so that steps remain to be done."""
    found = "training/*/checkpoints/step-*/manifest.json"
    job.stop_worker(worker, lambda: list(root.glob(found)), "a checkpoint was committed")


def require_same_training(root: Path, undisturbed: TrainedRun) -> None:
    """Assert that two trainings did the same steps once each and ended in the same weights."""
    expected, found = manifest(undisturbed.root, "training"), manifest(root, "training")
    for name in ("steps", "sequences_seen", "tokens_seen", "evaluation"):
        assert found[name] == expected[name], name
    assert trajectory(root) == trajectory(undisturbed.root)
    assert weights(root) == weights(undisturbed.root)
    (evaluation,) = records(root, "evaluation")
    assert evaluation["mlm_loss_nats"] == expected["evaluation"]["mlm_loss_nats"]


def test_an_undisturbed_training_records_every_step_once(trained: TrainedRun) -> None:
    result = manifest(trained.root, "training")
    assert [one["step"] for one in records(trained.root, "train")] == list(range(1, STEPS + 1))
    assert result["steps"] == STEPS
    assert result["sequences_seen"] == STEPS * trained.settings.training.batch_size
    generation = training_generation(trained.settings, open_instances(trained.settings))
    ref, passed_over = latest(generation)
    assert ref is not None
    assert ref.to_json() == result["checkpoint"]
    assert passed_over == ()
    assert len(attempts(trained.root)) == 1


def test_metrics_are_served_during_a_training_and_left_as_text_after_it(
    trained: TrainedRun,
) -> None:
    served = set(text_series(trained.scraped))
    left = text_series((current(trained.root, "training") / "metrics.prom").read_text())
    for name in (
        "clozeline_training_loss_nats",
        "clozeline_training_step",
        "clozeline_training_tokens_total",
        "clozeline_training_sequences_total",
        "clozeline_training_step_seconds_count",
        "clozeline_training_data_wait_seconds_total",
    ):
        assert name in served
        assert name in left
    result = manifest(trained.root, "training")
    assert left["clozeline_training_step"] == STEPS
    assert left["clozeline_training_tokens_total"] == result["tokens_seen"]
    assert left["clozeline_training_sequences_total"] == result["sequences_seen"]


def text_series(text: str) -> dict[str, float]:
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.mark.slow
def test_a_training_that_lost_workers_ends_as_the_undisturbed_one(
    trained: TrainedRun, undisturbed: Path, config: str, tmp_path: Path
) -> None:
    root = copy_data(undisturbed, tmp_path)
    command = module("trainer", "pretrain", "--config", config, "--root", str(root))
    pointer = root / "instances" / "current.json"
    with started(*command) as job:
        worker = job.workers(WORKER, 2)[0]
        stop_after_a_step(job, root, worker)
        # Whatever becomes current meanwhile: a training goes on with the shards it began with.
        pointer.rename(tmp_path / "current.json")
        worker.kill()
        job.wait().require_success()
    (tmp_path / "current.json").rename(pointer)
    assert len(attempts(root)) >= 2
    require_same_training(root, trained)


@pytest.mark.slow
def test_a_training_whose_driver_was_killed_goes_on_with_the_same_command(
    trained: TrainedRun, undisturbed: Path, config: str, tmp_path: Path
) -> None:
    root = copy_data(undisturbed, tmp_path)
    command = module("trainer", "pretrain", "--config", config, "--root", str(root))
    with started(*command) as job:
        worker = job.workers(WORKER, 2)[0]
        stop_after_a_step(job, root, worker)
        job.kill()
        with suppress(psutil.NoSuchProcess):  # Ray ends it with its driver
            worker.resume()
        assert not (root / "training" / "current.json").exists()
        # At once: the orphans may still save a checkpoint or two.
        with started(*command) as again:
            again.wait().require_success()
    assert len(attempts(root)) >= 2
    require_same_training(root, trained)
