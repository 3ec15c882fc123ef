"""The pre-training run of one worker: restore, step, record, evaluate, save. No Ray."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist

from pipeline.commit import Generation
from pipeline.instance_set import InstanceSet
from trainer.checkpoint import AttemptFence, CheckpointRef, latest, load
from trainer.config import TrainerConfig
from trainer.loader import Loader, evaluation_batches
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.optim import load_optimizer_tensors, make_optimizer
from trainer.phases import Phase, Source
from trainer.recorder import Progress, Recorder
from trainer.schedule import learning_rate
from trainer.step import EvalResult, evaluate, train_step
from trainer.training_run import initial_model

# Every token count of a flat batch makes oneDNN primitives of its own: the 1,024 it keeps by
# default took 0.7 GB, and fewer are no slower (measured). Read at the first operation.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


@dataclass(frozen=True, slots=True)
class Worker:
    """One rank of a run and what it computes on."""

    rank: int
    world_size: int
    device: torch.device
    group: dist.ProcessGroup | None


def pretrain(
    config: TrainerConfig, generation: Generation, instances: InstanceSet, worker: Worker
) -> None:
    """Train from the newest verified checkpoint to the last step, and leave result.json.

    `instances` are those that `generation` is named after, whatever became current since.
    Every rank of the group calls it. Raises what its parts raise: TrainingError, CorruptError.
    """
    torch.set_num_threads(config.training.threads_per_worker)
    model = initial_model(config, instances).to(worker.device)
    optimizer = make_optimizer(model, config.optimizer)
    # The fence first: from here on no earlier attempt commits a checkpoint that `_restore` misses.
    fence = AttemptFence.take(generation) if worker.rank == 0 else None
    progress = _restore(generation, worker, model, optimizer)
    recorder = Recorder(config, fence, progress) if fence else None
    training = config.training
    phase = Phase(
        sources=(Source(instances=instances),),
        batch_size=lambda step: training.batch_size,
        micro_batch_size=training.micro_batch_size,
        steps=training.total_steps,
    )
    loader = Loader(
        [phase],
        seed=config.seed,
        rules=config.masking,
        lanes=training.lanes,
        window_batches=training.window_batches,
        rank=worker.rank,
        world_size=worker.world_size,
        state=progress.loader,
        prefetch=training.prefetch_steps,
    )
    with loader, recorder or nullcontext():
        while progress.step < training.total_steps:
            started = time.monotonic()
            batches = next(loader)
            wait_seconds = time.monotonic() - started
            rate = learning_rate(
                progress.step,
                total_steps=training.total_steps,
                peak=config.optimizer.learning_rate,
                schedule=config.schedule,
            )
            result = train_step(
                model,
                optimizer,
                batches.micro_batches,
                step=progress.step,
                seed=config.seed,
                rank=worker.rank,
                learning_rate=rate,
                clip_norm=config.optimizer.clip_norm,
                precision=training.precision,
                device=worker.device,
                group=worker.group,
            )
            progress.step += 1
            progress.sequences_seen += result.sequences
            progress.tokens_seen += result.tokens
            progress.loader = batches.state_after
            if recorder:
                recorder.step(result, progress, rate, wait_seconds, time.monotonic() - started)
            every = config.evaluation.every_steps
            if every and progress.step % every == 0 and progress.step < training.total_steps:
                evaluation = _evaluate(config, instances, worker, model)
                if recorder:
                    recorder.evaluation(progress.step, evaluation)
            if recorder:
                recorder.save_when_due(model, optimizer, progress)
        evaluation = _evaluate(config, instances, worker, model)
        if recorder:
            recorder.evaluation(progress.step, evaluation)
            recorder.finish(model, optimizer, progress, evaluation, instances)
    if worker.group is not None:
        dist.barrier(group=worker.group)


def _restore(
    generation: Generation,
    worker: Worker,
    model: EncoderForPreTraining,
    optimizer: torch.optim.Optimizer,
) -> Progress:
    """Load the newest checkpoint that verifies; rank 0 picks it for every rank."""
    chosen: list[Any] = [None]
    if worker.rank == 0:
        ref, _ = latest(generation)
        chosen = [ref.to_json() if ref else None]
    if worker.group is not None:
        dist.broadcast_object_list(chosen, src=0, group=worker.group, device=worker.device)
    if chosen[0] is None:
        return Progress()
    checkpoint = load(generation, CheckpointRef.from_json(chosen[0]))
    model.load_state_dict(checkpoint.model)
    load_optimizer_tensors(optimizer, model, checkpoint.optimizer)
    return Progress.from_json(checkpoint.state)


def _evaluate(
    config: TrainerConfig, instances: InstanceSet, worker: Worker, model: EncoderForPreTraining
) -> EvalResult:
    batches = evaluation_batches(
        instances,
        seed=config.seed,
        rules=config.masking,
        rank=worker.rank,
        world_size=worker.world_size,
        batch_size=config.evaluation.batch_size,
        max_instances=config.evaluation.max_instances,
    )
    return evaluate(model, batches, device=worker.device, group=worker.group)
