"""The [training] and [evaluation] tables of a run's TOML."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from pydantic import ConfigDict

from pipeline.config import STRICT, Identity, Operational, require


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """Pre-training: how much, in which order, on what."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    total_steps: Identity[int] = 1_000_000
    """Optimizer updates of the run; 0 where total_tokens is its length."""
    total_tokens: Identity[int] = 0
    """Tokens of the run, padding never counts; 0 where total_steps is its length."""
    max_seq_length: Identity[int] = 0
    """Which of the lengths of instances.max_seq_length to train on; 0: its only one, or those of
    the phases."""
    batch_size: Identity[int] = 256
    """Sequences (or tokens) of one update, over all workers."""
    batch_unit: Identity[Literal["sequences", "tokens"]] = "sequences"
    """What batch_size, initial_batch_size and micro_batch_size count."""
    initial_batch_size: Identity[int] = 0
    """Of the first update; the batch grows to its full size over the warm-up of
    schedule.batch_size_warmup_steps or _tokens. 0: no warm-up."""
    lanes: Identity[int] = 64
    """Parts an epoch is divided over; the most workers a run can ever have."""
    window_batches: Identity[int] = 8
    """Record batches of a lane that are shuffled together."""
    start_from: Operational[str] = ""
    """Checkpoint of transformers to start the weights from, a folder every worker can read or
    s3://; empty: random weights. [model] must be its architecture, and the vocabulary must begin
    with its entries (`python -m trainer import` prints both). Its checksum is in the
    fingerprint."""
    precision: Identity[Literal["fp32", "bf16"]] = "fp32"
    """Arithmetic of the forward pass; weights and updates are always float32. bf16 is for GPUs and
    CPUs with AVX-512 or AMX: on others it is many times slower."""
    compile: Identity[bool] = False
    """Compile the blocks of the encoder (torch.compile): needs a C++ or CUDA compiler, and rounds
    differently."""
    micro_batch_size: Operational[int] = 64
    """Sequences (or tokens) of one forward pass on a worker."""
    activation_checkpointing: Operational[bool] = False
    """Keep only each layer's input for the backward pass and compute the rest again: less memory,
    a third more time."""
    workers: Operational[int] = 2
    """Data-parallel workers; with min_workers the most of them."""
    min_workers: Operational[int] = 0
    """Fewest workers to train with where the cluster has no room for all: the batch of each update
    stays the same, so nothing but its rounding changes. 0: no fewer than workers."""
    threads_per_worker: Operational[int] = 1
    """CPUs a worker asks Ray for and computes with."""
    device: Operational[Literal["auto", "cpu", "cuda"]] = "auto"
    """auto: a GPU for each worker where the cluster has enough of them, else the CPU."""
    checkpoint_seconds: Operational[float] = 600.0
    """Time between checkpoints. The last step, the start of a phase, each multiple of
    keep_every_steps and an evaluation better than those before make one too."""
    keep_checkpoints: Operational[int] = 2
    """Newest checkpoints that stay, beside the best one."""
    keep_every_steps: Operational[int] = 0
    """The checkpoint of each multiple of this number of steps stays for good; 0: none does."""
    log_steps: Operational[int] = 10
    """Steps between two records of metrics.jsonl."""
    max_restarts: Operational[int] = 8
    """Times a failed worker group is started again before the run gives up."""
    prefetch_steps: Operational[int] = 4
    """Steps whose batches are made ready ahead."""
    read_ahead_bytes: Operational[int] = 67_108_864
    """Bytes of shards that a worker reads ahead of its lanes' windows, for each instance set."""
    read_threads: Operational[int] = 2
    """Threads a worker reads shards with."""
    cache_directory: Operational[str] = ""
    """Local folder that keeps what was read of an object store, for all workers of a machine;
    empty: none."""
    cache_bytes: Operational[int] = 10_000_000_000
    """Largest size of that folder."""
    beside_unfinished: Operational[bool] = False
    """Begin a training although one of another configuration lies unfinished under the root."""

    def __post_init__(self) -> None:
        for name in (
            "batch_size",
            "lanes",
            "window_batches",
            "micro_batch_size",
            "workers",
            "threads_per_worker",
            "keep_checkpoints",
            "log_steps",
            "prefetch_steps",
            "read_ahead_bytes",
            "read_threads",
            "cache_bytes",
        ):
            value = getattr(self, name)
            require(value >= 1, f"training.{name}", value, "must be at least 1")
        for name in ("total_steps", "total_tokens", "initial_batch_size"):
            value = getattr(self, name)
            require(value >= 0, f"training.{name}", value, "must be >= 0")
        require(
            self.total_steps > 0 or self.total_tokens > 0,
            "training.total_steps",
            self.total_steps,
            "must be at least 1, or 0 with training.total_tokens",
        )
        require(
            self.total_steps == 0 or self.total_tokens == 0,
            "training.total_tokens",
            self.total_tokens,
            f"with training.total_steps = {self.total_steps} the run has two lengths; set one of "
            "them to 0",
        )
        require(
            self.total_steps <= 1_000_000_000,
            "training.total_steps",
            self.total_steps,
            "must be at most 1000000000",
        )
        require(
            self.prefetch_steps <= 1_000,
            "training.prefetch_steps",
            self.prefetch_steps,
            "must be at most 1000: every batch ahead is held in memory",
        )
        require(
            self.workers <= self.lanes,
            "training.workers",
            self.workers,
            f"must be at most training.lanes = {self.lanes}",
        )
        require(
            0 <= self.min_workers <= self.workers,
            "training.min_workers",
            self.min_workers,
            f"must be from 0 to training.workers = {self.workers}",
        )
        require(
            self.checkpoint_seconds >= 0.0,
            "training.checkpoint_seconds",
            self.checkpoint_seconds,
            "must be >= 0",
        )
        for name in ("max_restarts", "keep_every_steps"):
            value = getattr(self, name)
            require(value >= 0, f"training.{name}", value, "must be >= 0")

    @property
    def least_workers(self) -> int:
        """Fewest workers that the run may be trained by."""
        return self.min_workers or self.workers

    @property
    def least_workers_key(self) -> str:
        """The key of the TOML that says so."""
        return "training.min_workers" if self.min_workers else "training.workers"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Evaluation on the held-out instances, with masks that never change."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    every_steps: Operational[int] = 0
    """Steps between evaluations; 0: after the last step only."""
    max_instances: Identity[int] = 100_000
    """Held-out instances to evaluate on, the first ones of each set of a mixture."""
    masking_probability: Identity[float] = 0.0
    """Share of the maskable tokens that are predicted in evaluation (of dynamic masks), so that
    runs which train on other shares can be compared; 0: masking.probability."""
    batch_size: Operational[int] = 64
    """Sequences of one forward pass."""

    def __post_init__(self) -> None:
        require(self.every_steps >= 0, "evaluation.every_steps", self.every_steps, "must be >= 0")
        for name in ("max_instances", "batch_size"):
            value = getattr(self, name)
            require(value >= 1, f"evaluation.{name}", value, "must be at least 1")
        require(
            0.0 <= self.masking_probability <= 1.0,
            "evaluation.masking_probability",
            self.masking_probability,
            "must be in [0, 1]",
        )
