"""A training that was stopped after any step ends, to the bit, as one that was not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from pipeline.commit import Generation
from pipeline.instance_set import InstanceSet
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
from trainer.config import TrainerConfig
from trainer.ranks import Worker

STEPS = 8


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
            dist.barrier()
        train(config_at(root, worker.world_size), instances, worker)


def rank_worker(rank: int, folder: str, world_size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size
    )
    train_and_resume(Path(folder), Worker(rank, world_size, torch.device("cpu"), dist.group.WORLD))
    dist.destroy_process_group()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_stopped_after_any_step_it_ends_as_one_that_was_not(
    tmp_path: Path, world_size: int
) -> None:
    two_lengths(tmp_path / "whole")
    if world_size == 1:
        train_and_resume(tmp_path, CPU)
    else:
        arguments = (str(tmp_path), world_size)
        torch.multiprocessing.spawn(rank_worker, args=arguments, nprocs=world_size)
    whole = Generation(str(tmp_path / "whole"), "training", "a" * 20)
    weights, state = last_state(whole)
    assert state["step"] == STEPS and len(state["phase_starts"]) == 2
    for step in range(1, STEPS):
        again = Generation(str(tmp_path / f"stopped{step}"), "training", "a" * 20)
        found, found_state = last_state(again)
        assert all(torch.equal(found[name], weights[name]) for name in weights), step
        assert found_state == state
        assert what_was_learned(again) == what_was_learned(whole)
        assert records(again, "evaluation") == records(whole, "evaluation")
