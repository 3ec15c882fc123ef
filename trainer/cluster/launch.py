"""Launch a training run on the cluster and see it through: workers, restarts, progress."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
import ray
from ray.exceptions import RayActorError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from rich.console import Console

from pipeline.commit import Generation
from pipeline.contract import METRICS_JSONL
from pipeline.errors import ClusterError, StorageError
from pipeline.instance_set import InstanceSet
from pipeline.progress import progress
from pipeline.ray_session import ray_session
from pipeline.storage import absolute_uri, arrow_filesystem
from trainer.cluster.failure_policy import LastingFailures
from trainer.cluster.notices import StopNotices
from trainer.cluster.worker import train_worker
from trainer.config import TrainerConfig
from trainer.data.phases import Source
from trainer.freed_memory import KEEP_FREED_MEMORY
from trainer.journal import read_journal
from trainer.run_plan import open_sources, require_data, step_plan
from trainer.settings.training import TrainingConfig

_POLL_SECONDS = 2.0


def train(config: TrainerConfig, generation: Generation, instances: InstanceSet) -> None:
    """Train on `instances` to the last step; a failed worker group starts again from a checkpoint.

    Raises ConfigError for data that the config's batches cannot be made of, ClusterError if the
    cluster lacks the workers' resources, and the workers' own error when `training.max_restarts`
    are used up, or at once where a restart cannot heal it.
    """
    training = config.training
    sources = open_sources(config, instances)
    plan = step_plan(config, sources)
    require_data(config, sources, plan)
    with (
        ray_session(
            ray,
            config.ray_address,
            cpus=training.workers * training.threads_per_worker,
            object_store_bytes=config.cluster.object_store_bytes,
            working_storage=config.working_storage,
        ),
        _progress(generation, plan.total_steps),
    ):
        _fit(config, generation, sources)


def _fit(
    config: TrainerConfig, generation: Generation, sources: Sequence[tuple[Source, ...]]
) -> None:
    training = config.training
    gpus = int(ray.cluster_resources().get("GPU", 0))
    use_gpu = _use_gpu(training, gpus)
    if warning := too_few_gpus(training, gpus):
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print(f"warning: {warning}", markup=False)
    _require_resources(config, use_gpu)
    if training.start_from:
        # A worker has another working directory.
        start_from = absolute_uri(training.start_from)
        training = dataclasses.replace(training, start_from=start_from)
        config = dataclasses.replace(config, training=training)
    filesystem, path = arrow_filesystem(f"{generation.root}/{generation.prefix}/ray_train")
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"config": config, "generation": generation, "sources": sources},
        scaling_config=ScalingConfig(
            num_workers=_worker_counts(training),
            use_gpu=use_gpu,
            resources_per_worker={
                "CPU": training.threads_per_worker,
                **({"GPU": 1} if use_gpu else {}),
            },
        ),
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
        run_config=RunConfig(
            # Ray's own notes on the run; what is resumed from is our newest verified checkpoint.
            name=f"launch-{time.time_ns()}",
            storage_path=path,
            storage_filesystem=filesystem,
            failure_config=FailureConfig(max_failures=training.max_restarts),
            callbacks=[LastingFailures(), StopNotices()],
            # On a GPU the tensors are not glibc's.
            worker_runtime_env={} if use_gpu else {"env_vars": dict(KEEP_FREED_MEMORY)},
        ),
    )
    try:
        trainer.fit()
    except RayActorError as error:
        raise ClusterError(
            "training: the process that leads the workers was lost (killed, or its node went); "
            "give the command again to go on from the newest checkpoint"
        ) from error


def _worker_counts(training: TrainingConfig) -> int | tuple[int, int]:
    """Return the one number of workers, or the (least, most) that Ray Train may start."""
    if training.least_workers == training.workers:
        return training.workers
    return training.least_workers, training.workers


def _use_gpu(training: TrainingConfig, gpus: int) -> bool:
    if training.device == "auto":
        return gpus >= training.least_workers
    return training.device == "cuda"


def too_few_gpus(training: TrainingConfig, gpus: int) -> str:
    """Return what to say where the cluster has GPUs and the training goes without; else ""."""
    least = training.least_workers
    if training.device != "auto" or not 0 < gpus < least:
        return ""
    key = training.least_workers_key
    return (
        f'training.device = "auto": trains on the CPU, since {key} = {least} and the cluster has '
        f"GPUs for {gpus}; lower {key} to {gpus} to train on them"
    )


def _require_resources(config: TrainerConfig, use_gpu: bool) -> None:
    available = ray.cluster_resources()
    training = config.training
    workers = training.least_workers
    key = training.least_workers_key
    wanted = {"CPU": workers * training.threads_per_worker}
    if use_gpu:
        wanted["GPU"] = workers
    for kind, amount in wanted.items():
        if available.get(kind, 0) < amount:
            raise ClusterError(
                f"{key} = {workers}: want {amount} {kind}, the cluster has "
                f"{available.get(kind, 0):g}; lower {key} or "
                "training.threads_per_worker, or add nodes"
            )


@contextmanager
def _progress(generation: Generation, total_steps: int) -> Iterator[None]:
    """Show the steps done, read from the run's journal, while the block runs."""
    stop = threading.Event()
    with progress("pretrain: steps", total_steps, "units") as advance:
        watcher = threading.Thread(target=_watch, args=(generation, stop, advance), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()


def _watch(generation: Generation, stop: threading.Event, advance: Any) -> None:
    shown = attempt = 0
    records = _NewRecords(generation)
    # Those of earlier launches were told then.
    told = set(_warnings(records.read()))
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    stopped = False
    while not stopped:
        stopped = stop.wait(_POLL_SECONDS)
        found = records.read()
        if not found:
            continue
        for warning in _warnings(found):
            if warning not in told:
                console.print(warning, markup=False)
                told.add(warning)
        last = found[-1]
        if last["step"] > shown:
            advance(last["step"] - shown)
            shown = last["step"]
        newest = last.get("attempt", attempt)
        if attempt and newest > attempt:
            console.print(_what_happened(found, newest), markup=False)
        attempt = newest


class _NewRecords:
    """A run's journal, read when it has grown: that of a long run is tens of megabytes."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._storage = generation.storage
        self._size = 0

    def read(self) -> list[dict[str, Any]]:
        """Return all records, or none where there are no new ones or the store does not answer."""
        try:
            size = self._storage.size(self._generation.name(METRICS_JSONL)) or 0
            records = read_journal(self._generation) if size != self._size else []
        except StorageError:  # costs a moment of the bar, no more
            return []
        self._size = size
        return records


def _warnings(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"training: attempt {one['attempt']}, step {one['step']}: {one['text']}"
        for one in records
        if one["kind"] == "warning"
    ]


def _what_happened(records: Sequence[Mapping[str, Any]], attempt: int) -> str:
    """Say why a later attempt goes on."""
    for record in reversed(records):
        if record["kind"] == "rollback" and record["attempt"] == attempt:
            return (
                f"training: {record['reason']}; back to step {record['to_step']}, and on without "
                f"{record['skipped_sequences']} sequences"
            )
    of_attempt = [one for one in records if one.get("attempt") == attempt and "workers" in one]
    workers = f" with {of_attempt[0]['workers']} workers" if of_attempt else ""
    step = of_attempt[0]["step"] - 1 if of_attempt else records[-1]["step"]
    return (
        "training: a worker failed or their number changed; "
        f"attempt {attempt} goes on from step {step}{workers}"
    )
