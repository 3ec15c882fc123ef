"""Workers that are told they will end save first: by SIGTERM, or by Ray's draining of a node."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from tests.integration.nodes import WORKER, ray_nodes
from tests.integration.product import Command, module, started
from tests.integration.run_folder import copy_data, manifest
from tests.integration.test_training import attempts, records, trajectory, weights
from tests.trainer.small_training import stopped_after

pytestmark = [pytest.mark.ray, pytest.mark.slow]

BATCH = 16


def command(config: str, root: Path, steps: int, *arguments: str) -> tuple[str, ...]:
    """A training whose only checkpoint by the clock is the last."""
    return module(
        *("trainer", "pretrain", "--config", config, "--root", str(root), *arguments),
        *("--training.total_steps", str(steps), "--training.checkpoint_seconds", "1000000"),
    )


def saved_steps(root: Path) -> list[int]:
    found = root.glob("training/*/checkpoints/*/manifest.json")
    return sorted(int(path.parent.name.split("-")[1]) for path in found)


def stop_after_a_record(job: Command, root: Path, worker: psutil.Process) -> None:
    """Stop a worker when the run has written its first record: hundreds of steps are before it."""
    found = "training/*/metrics.jsonl"
    job.stop_worker(worker, lambda: list(root.glob(found)), "records of steps")


def test_a_worker_that_gets_sigterm_saves_and_a_resume_from_there_ends_as_the_run_itself(
    undisturbed: Path, config: str, tmp_path: Path
) -> None:
    steps = 400
    whole = copy_data(undisturbed, tmp_path / "whole")
    with started(*command(config, whole, steps)) as job:
        # The one that is not rank 0: the ranks have to agree.
        worker = job.workers(WORKER, 2)[-1]
        stop_after_a_record(job, whole, worker)
        reached = len(records_so_far(whole))
        worker.send_signal(signal.SIGTERM)
        worker.resume()
        job.until(lambda: saved_steps(whole), "a checkpoint was committed")
        job.wait().require_success()
    assert len(attempts(whole)) == 1, "the notice ended the worker"
    asked, last = saved_steps(whole)
    assert reached <= asked < last == steps

    root = stopped_after(asked, whole, tmp_path / "stopped")
    with started(*command(config, root, steps)) as job:
        job.wait().require_success()
    assert {one["attempt"] for one in records(root, "train")} == {1, 2}
    assert trajectory(root) == trajectory(whole)
    assert weights(root) == weights(whole)


def records_so_far(root: Path) -> list[str]:
    (journal,) = root.glob("training/*/metrics.jsonl")
    return journal.read_text().splitlines()


@pytest.mark.soak
def test_a_node_that_is_drained_is_saved_from_and_the_other_goes_on(
    undisturbed: Path, config: str, tmp_path: Path
) -> None:
    steps = 1200
    root = copy_data(undisturbed, tmp_path)
    least = ("--training.min_workers", "1")
    with (
        ray_nodes(2) as cluster,
        started(*command(config, root, steps, *least), **cluster.join) as job,
    ):
        node = cluster.nodes[-1]
        worker = cluster.worker_of(node)
        stop_after_a_record(job, root, worker)
        cluster.give_notice(node)
        worker.resume()
        job.until(lambda: saved_steps(root), "a checkpoint was committed")
        job.wait().require_success()
    assert manifest(root, "training")["sequences_seen"] == steps * BATCH
    found = records(root, "train")
    assert [one["step"] for one in found] == list(range(1, steps + 1))
    assert (found[0]["workers"], found[-1]["workers"]) == (2, 1)
    # The second attempt went on from a checkpoint that a notice has asked for.
    first_of_second = next(one["step"] for one in found if one["attempt"] == 2)
    assert first_of_second - 1 in saved_steps(root)
