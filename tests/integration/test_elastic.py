"""Fewer workers than asked for, and workers that are told to end: the same data, nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import TrainedRun
from tests.integration.nodes import ray_nodes
from tests.integration.product import module, started
from tests.integration.run_folder import copy_data, manifest
from tests.integration.test_training import records, records_of, stop_after_a_step

pytestmark = pytest.mark.ray

# What of a step depends on the data alone, whoever computes it.
OF_DATA = ("epochs", "learning_rate", "masked_share", "phase", "sequences", "tokens_seen")


def require_same_data(root: Path, undisturbed: TrainedRun) -> None:
    """Assert that each step had the same batch, and ended in the same loss but for rounding."""
    for name in ("steps", "sequences_seen", "tokens_seen"):
        assert manifest(root, "training")[name] == manifest(undisturbed.root, "training")[name]
    found, expected = records(root, "train"), records(undisturbed.root, "train")
    assert [one["step"] for one in found] == [one["step"] for one in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert [ours[name] for name in OF_DATA] == [theirs[name] for name in OF_DATA]
        assert ours["mlm_loss"] == pytest.approx(theirs["mlm_loss"], abs=1e-3)


@pytest.mark.slow
def test_a_training_goes_on_with_fewer_workers_after_a_node_was_lost(
    trained: TrainedRun, undisturbed: Path, config: str, tmp_path: Path
) -> None:
    root = copy_data(undisturbed, tmp_path)
    command = module("trainer", "pretrain", "--config", config, "--root", str(root))
    with (
        ray_nodes(2) as cluster,
        started(*command, "--training.min_workers", "1", **cluster.join) as job,
    ):
        stop_after_a_step(job, root, cluster.worker_of(cluster.nodes[-1]))
        cluster.kill(cluster.nodes[-1])
        job.wait().require_success()
    require_same_data(root, trained)
    counts = [one["workers"] for one in records(root, "train")]
    assert counts[0] == 2 and counts[-1] == 1
    assert sorted(counts, reverse=True) == counts


@pytest.mark.slow
@pytest.mark.soak
def test_a_training_grows_when_a_node_comes_from_the_step_it_was_at(
    undisturbed: Path, config: str, tmp_path: Path
) -> None:
    root = copy_data(undisturbed, tmp_path)
    # More steps than will be done: it is over when the second worker has joined.
    long = ("--training.total_steps", "1000000", "--training.checkpoint_seconds", "1000000")
    command = module("trainer", "pretrain", "--config", config, "--root", str(root), *long)

    def trained_by(workers: int) -> list[int]:
        """The steps that so many workers have done, as far as the journal says."""
        return [
            one["step"]
            for path in root.glob("training/*/metrics.jsonl")
            for one in records_of(path.read_text(), "train")
            if one["workers"] == workers
        ]

    with (
        ray_nodes(1) as cluster,
        started(*command, "--training.min_workers", "1", **cluster.join) as job,
    ):
        job.until(lambda: trained_by(1), "one worker trains")
        cluster.add()
        job.until(lambda: trained_by(2), "two workers train")
    alone, together = trained_by(1), trained_by(2)
    assert alone == list(range(1, len(alone) + 1))
    # The group that was stopped had saved, so the other went on right there.
    (saved,) = {path.parent for path in root.glob("training/*/checkpoints/*/manifest.json")}
    assert together[0] == int(saved.name.split("-")[1]) + 1 == len(alone) + 1
