"""A whole run's TOML: the data half of pipeline/config.py and the trainer's own tables."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from pipeline.config import (
    STRICT,
    Identity,
    Operational,
    PipelineConfig,
    from_table,
    identity_fields,
    read_toml,
    require,
)
from pipeline.contract import PAIR_LABELS
from trainer.model_config import ModelConfig
from trainer.optimizer_config import OptimizerConfig
from trainer.schedule_config import ScheduleConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """Pre-training: how much, in which order, on what."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    total_steps: Identity[int] = 1_000_000
    """Optimizer updates of the run."""
    max_seq_length: Identity[int] = 0
    """Which of the lengths of instances.max_seq_length to train on; 0: its only one."""
    batch_size: Identity[int] = 256
    """Sequences of one update, over all workers; a multiple of lanes."""
    lanes: Identity[int] = 64
    """Parts an epoch is divided over; the most workers a run can ever have."""
    window_batches: Identity[int] = 8
    """Record batches of a lane that are shuffled together."""
    precision: Identity[Literal["fp32", "bf16"]] = "fp32"
    """Arithmetic of the forward pass; weights and updates are always float32. bf16 is for GPUs and
    CPUs with AVX-512 or AMX: on others it is many times slower."""
    micro_batch_size: Operational[int] = 64
    """Sequences of one forward pass on a worker."""
    workers: Operational[int] = 2
    """Data-parallel workers."""
    threads_per_worker: Operational[int] = 1
    """CPUs a worker asks Ray for and computes with."""
    device: Operational[Literal["auto", "cpu", "cuda"]] = "auto"
    """auto: a GPU for each worker where the cluster has enough of them, else the CPU."""
    checkpoint_seconds: Operational[float] = 600.0
    """Time between checkpoints; the last step always makes one."""
    keep_checkpoints: Operational[int] = 2
    """Newest checkpoints that stay."""
    log_steps: Operational[int] = 10
    """Steps between two records of metrics.jsonl."""
    max_restarts: Operational[int] = 8
    """Times a failed worker group is started again before the run gives up."""
    prefetch_steps: Operational[int] = 4
    """Steps whose batches are made ready ahead."""

    def __post_init__(self) -> None:
        for name in (
            "total_steps",
            "batch_size",
            "lanes",
            "window_batches",
            "micro_batch_size",
            "workers",
            "threads_per_worker",
            "keep_checkpoints",
            "log_steps",
            "prefetch_steps",
        ):
            value = getattr(self, name)
            require(value >= 1, f"training.{name}", value, "must be at least 1")
        require(
            self.prefetch_steps <= 1_000,
            "training.prefetch_steps",
            self.prefetch_steps,
            "must be at most 1000: every batch ahead is held in memory",
        )
        require(
            self.batch_size % self.lanes == 0,
            "training.batch_size",
            self.batch_size,
            f"must be a multiple of training.lanes = {self.lanes}",
        )
        require(
            self.workers <= self.lanes,
            "training.workers",
            self.workers,
            f"must be at most training.lanes = {self.lanes}",
        )
        require(
            self.checkpoint_seconds >= 0.0,
            "training.checkpoint_seconds",
            self.checkpoint_seconds,
            "must be >= 0",
        )
        require(self.max_restarts >= 0, "training.max_restarts", self.max_restarts, "must be >= 0")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Evaluation on the held-out instances, with masks that never change."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    every_steps: Operational[int] = 0
    """Steps between evaluations; 0: after the last step only."""
    max_instances: Identity[int] = 100_000
    """Held-out instances to evaluate on, the first ones."""
    batch_size: Operational[int] = 64
    """Sequences of one forward pass."""

    def __post_init__(self) -> None:
        require(self.every_steps >= 0, "evaluation.every_steps", self.every_steps, "must be >= 0")
        for name in ("max_instances", "batch_size"):
            value = getattr(self, name)
            require(value >= 1, f"evaluation.{name}", value, "must be at least 1")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig(PipelineConfig):
    """A whole run."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    model: Identity[ModelConfig] = ModelConfig()
    optimizer: Identity[OptimizerConfig] = OptimizerConfig()
    schedule: Identity[ScheduleConfig] = ScheduleConfig()
    training: Identity[TrainingConfig] = TrainingConfig()
    evaluation: Identity[EvaluationConfig] = EvaluationConfig()

    def __post_init__(self) -> None:
        PipelineConfig.__post_init__(self)
        lengths = self.instances.max_seq_lengths
        require(
            self.training.max_seq_length in lengths
            or (self.training.max_seq_length == 0 and len(lengths) == 1),
            "training.max_seq_length",
            self.training.max_seq_length,
            f"must be one of instances.max_seq_length = {list(lengths)}",
        )
        # The padding token's id is known with the vocabulary only: 0 is the least there can be.
        positions = self.model.max_position_embeddings - self.model.first_position(0)
        require(
            self.trained_length <= positions,
            "model.max_position_embeddings",
            self.model.max_position_embeddings,
            f"leaves positions for {positions} tokens, an instance has {self.trained_length}",
        )
        if self.instances.objective in PAIR_LABELS:
            self._require_pair_head()
        require(
            self.schedule.warmup_steps < self.training.total_steps,
            "schedule.warmup_steps",
            self.schedule.warmup_steps,
            f"must be below training.total_steps = {self.training.total_steps}",
        )

    @property
    def trained_length(self) -> int:
        """Tokens at most of the instances that are trained on."""
        return self.training.max_seq_length or self.instances.max_seq_lengths[0]

    def _require_pair_head(self) -> None:
        objective = self.instances.objective
        require(
            self.model.type_vocab_size != 1,
            "model.type_vocab_size",
            self.model.type_vocab_size,
            f'must be at least 2: instances.objective = "{objective}" has two segments; 0 for a '
            "model without segment embeddings",
        )
        require(
            self.model.pooler or self.model.architecture == "custom",
            "model.pooler",
            self.model.pooler,
            f'must be true: instances.objective = "{objective}" has a pair head, which '
            f'model.architecture = "{self.model.architecture}" reads from the pooler',
        )


def load(path: str) -> TrainerConfig:
    """Load and validate a run's whole TOML."""
    return from_table(TrainerConfig, read_toml(path), path)


def training_identity(config: TrainerConfig) -> dict[str, Any]:
    """Return the identity fields that the training stage depends on, beside its shards."""
    identity = {
        name: identity_fields(getattr(config, name))
        for name in ("model", "optimizer", "schedule", "training", "evaluation")
    }
    identity["training"]["max_seq_length"] = config.trained_length
    # Static masks lie in the shards, whose fingerprint covers them.
    if config.masking.mode == "dynamic":
        identity["masking"] = identity_fields(config.masking)
    return {**identity, "seed": config.seed}
