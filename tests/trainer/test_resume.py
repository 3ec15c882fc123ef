"""A training that was stopped after any step ends, to the bit, as one that was not."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from pipeline.commit import Generation
from pipeline.instance_set import InstanceSet
from tests.trainer import poisoned
from tests.trainer.small_training import (
    CPU,
    PHASES,
    last_state,
    records,
    small_config,
    stopped_after,
    train,
    two_lengths,
    what_was_learned,
)
from trainer import background_saver, ranks
from trainer.checkpoint import CheckpointRef, committed, write
from trainer.config import TrainerConfig
from trainer.ranks import Worker

STEPS = 6
PATIENCE_SECONDS = 5.0  # of a collective of the ranks that share a slow store


def config_at(root: Path, workers: int) -> TrainerConfig:
    """Two phases, a growing batch, several micro-batches a step, dropout, evaluations."""
    return small_config(
        root,
        **PHASES,
        model={"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        optimizer={"name": "lamb"},
        schedule={"batch_size_warmup_steps": 4},
        training={
            "initial_batch_size": 4,
            "total_steps": STEPS,
            "lanes": 4,
            "workers": workers,
            "micro_batch_size": 3,
        },
        evaluation={"every_steps": 3},
    )


def train_and_resume(folder: Path, worker: Worker) -> None:
    """Train undisturbed, then from the checkpoint of every step; all ranks call it."""
    whole = folder / "whole"
    instances = InstanceSet.open(str(whole), 16)
    train(config_at(whole, worker.world_size), instances, worker)
    for step in range(1, STEPS):
        root = folder / f"stopped{step}"
        if worker.rank == 0:
            stopped_after(step, whole, root)
        if worker.group is not None:
            dist.barrier(group=worker.group)
        train(config_at(root, worker.world_size), instances, worker)


def train_on_a_slow_store(root: Path, worker: Worker) -> None:
    """A run whose first checkpoint takes longer than its steps, and than a collective waits."""
    began = []

    def late(*arguments: Any) -> CheckpointRef:
        if not began:
            began.append(True)
            time.sleep(2.5 * PATIENCE_SECONDS)
        return write(*arguments)

    settings = {"total_steps": 3, "checkpoint_seconds": 1e-9, "lanes": 2, "workers": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background_saver, "write", late)
        train(small_config(root, training=settings), InstanceSet.open(str(root), 16), worker)


def rank_worker(rank: int, folder: str) -> None:
    """Train in groups of the first two, three and four ranks, and two ranks on poisoned data."""
    torch.set_num_threads(1)
    ranks._NOTICE_SECONDS = 0.001  # so that many notices go out before rank 0 has decided
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
    impatient = dist.new_group([0, 1], timeout=timedelta(seconds=PATIENCE_SECONDS))
    if rank < 2:
        worker = Worker(rank, 2, torch.device("cpu"), impatient)
        train_on_a_slow_store(Path(folder) / "slow", worker)
    for size in (2, 3, 4):
        group = dist.new_group(list(range(size)))
        if rank < size:
            worker = Worker(rank, size, torch.device("cpu"), group)
            train_and_resume(Path(folder) / str(size), worker)
        if rank < size == 2:
            root = Path(folder) / "poisoned"
            layout = {"lanes": 2, "workers": 2, "micro_batch_size": 4}
            config = poisoned.config_at(root, training=layout)
            train(config, InstanceSet.open(str(root)), worker)
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What groups of one to four ranks have left: <ranks>/whole, <ranks>/stopped<step>."""
    folder = tmp_path_factory.mktemp("ranks")
    for size in (1, 2, 3, 4):
        two_lengths(folder / str(size) / "whole")
    # Each lane has half of every step: the bad record batch lies in two steps, half of each.
    poisoned.instances_at(folder / "poisoned")
    two_lengths(folder / "slow")
    train_and_resume(folder / "1", CPU)
    torch.multiprocessing.spawn(rank_worker, args=(str(folder),), nprocs=4)
    return folder


def generation_at(root: Path) -> Generation:
    return Generation(str(root), "training", "a" * 20)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_stopped_after_any_step_it_ends_as_one_that_was_not(trained: Path, world_size: int) -> None:
    folder = trained / str(world_size)
    whole = generation_at(folder / "whole")
    weights, state = last_state(whole)
    assert state["step"] == STEPS and len(state["phase_starts"]) == 2
    for step in range(1, STEPS):
        again = generation_at(folder / f"stopped{step}")
        found, found_state = last_state(again)
        assert all(torch.equal(found[name], weights[name]) for name in weights), step
        assert found_state == state
        assert what_was_learned(again) == what_was_learned(whole)
        assert records(again, "evaluation") == records(whole, "evaluation")


def test_any_number_of_ranks_sees_the_same_data_at_the_same_rates(trained: Path) -> None:
    runs = [generation_at(trained / str(size) / "whole") for size in (1, 2, 3, 4)]
    states = [last_state(run)[1] for run in runs]
    assert all(state["loader"] == states[0]["loader"] for state in states)
    assert all(state["tokens_seen"] == states[0]["tokens_seen"] for state in states)
    rates = [[one["learning_rate"] for one in records(run, "train")] for run in runs]
    assert all(rate == rates[0] for rate in rates)


def test_two_ranks_go_back_together(trained: Path) -> None:
    _, state = last_state(generation_at(trained / "poisoned"))
    assert len(state["rollbacks"]) == 2
    assert state["step"] == poisoned.STEPS
    assert state["sequences_seen"] == poisoned.STEPS * poisoned.BATCH


def test_the_other_ranks_wait_for_a_slow_store_longer_than_for_a_collective(trained: Path) -> None:
    run = generation_at(trained / "slow")
    assert committed(run)[0] == (3, 1)
    assert [one["attempt"] for one in records(run, "train")] == [1, 1, 1]
