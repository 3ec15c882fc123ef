"""A whole run's TOML: the data half of pipeline/config.py and the trainer's own tables."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from pydantic import ConfigDict

from pipeline.config import (
    STRICT,
    Identity,
    PipelineConfig,
    from_table,
    identity_fields,
    read_toml,
    require,
)
from pipeline.contract import PAIR_LABELS
from pipeline.identity import documents_identity, instances_identity, vocabulary_identity
from trainer.schedule import Budget
from trainer.settings.divergence import DivergenceConfig
from trainer.settings.export import ExportConfig
from trainer.settings.model import ModelConfig
from trainer.settings.optimizer import OptimizerConfig
from trainer.settings.phase import PhaseConfig, phase_ends
from trainer.settings.schedule import ScheduleConfig
from trainer.settings.training import EvaluationConfig, TrainingConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig(PipelineConfig):
    """A whole run."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    model: Identity[ModelConfig] = ModelConfig()
    optimizer: Identity[OptimizerConfig] = OptimizerConfig()
    schedule: Identity[ScheduleConfig] = ScheduleConfig()
    training: Identity[TrainingConfig] = TrainingConfig()
    phases: Identity[tuple[PhaseConfig, ...]] = ()
    """Parts of the training one after another; none: one, as [training] says."""
    divergence: Identity[DivergenceConfig] = DivergenceConfig()
    evaluation: Identity[EvaluationConfig] = EvaluationConfig()
    export: Identity[ExportConfig] = ExportConfig()

    def __post_init__(self) -> None:
        PipelineConfig.__post_init__(self)
        if self.instances.objective in PAIR_LABELS:
            self._require_pair_head()
        self._require_lengths()
        self.budget.require_schedule(self.schedule)
        self._require_phases()
        require(
            self.evaluation.masking_probability == 0.0 or self.masking.mode == "dynamic",
            "evaluation.masking_probability",
            self.evaluation.masking_probability,
            'must be 0: masking.mode = "static" has the masks in the shards, held-out ones too',
        )

    @property
    def budget(self) -> Budget:
        """The length of the run."""
        training = self.training
        if training.total_tokens:
            return Budget(unit="tokens", total=training.total_tokens)
        return Budget(unit="steps", total=training.total_steps)

    @property
    def resolved_phases(self) -> tuple[PhaseConfig, ...]:
        """The phases with every value filled in; one where the config has none."""
        training = self.training
        lengths = self.instances.max_seq_lengths
        only = PhaseConfig(max_seq_length=training.max_seq_length or lengths[0], share=1.0)
        return tuple(
            dataclasses.replace(
                phase,
                batch_size=phase.batch_size or training.batch_size,
                learning_rate=phase.learning_rate or self.optimizer.learning_rate,
            )
            for phase in self.phases or (only,)
        )

    @property
    def positions(self) -> int:
        """Tokens of a sequence that the model has positions for at most."""
        # The padding token's id is known with the vocabulary only: 0 is the least there can be.
        return self.model.max_position_embeddings - self.model.first_position(0)

    @property
    def trained_length(self) -> int:
        """Tokens at most of the instances that are trained on, in any phase."""
        return max(phase.max_seq_length for phase in self.resolved_phases)

    def _require_lengths(self) -> None:
        lengths = self.instances.max_seq_lengths
        if self.phases:
            require(
                self.training.max_seq_length == 0,
                "training.max_seq_length",
                self.training.max_seq_length,
                "must be 0: each of the phases has its own",
            )
        for number, phase in enumerate(self.phases):
            require(
                phase.max_seq_length in lengths,
                f"phases.{number}.max_seq_length",
                phase.max_seq_length,
                f"must be one of instances.max_seq_length = {list(lengths)}",
            )
        require(
            bool(self.phases)
            or self.training.max_seq_length in lengths
            or (self.training.max_seq_length == 0 and len(lengths) == 1),
            "training.max_seq_length",
            self.training.max_seq_length,
            f"must be one of instances.max_seq_length = {list(lengths)}, or give [[phases]]",
        )
        require(
            self.trained_length <= self.positions,
            "model.max_position_embeddings",
            self.model.max_position_embeddings,
            f"leaves positions for {self.positions} tokens, an instance has {self.trained_length}",
        )

    def _require_phases(self) -> None:
        phase_ends([phase.share for phase in self.resolved_phases], self.budget.total)
        initial = self.training.initial_batch_size
        warmup = self.budget.batch_size_warmup(self.schedule)
        require(
            (initial > 0) == (warmup > 0),
            "training.initial_batch_size",
            initial,
            f"and schedule.batch_size_warmup_{self.budget.unit} = {warmup} belong together: give "
            "both, or leave both out",
        )
        for number, phase in enumerate(self.resolved_phases):
            name = f"phases.{number}.batch_size" if self.phases else "training.batch_size"
            require(
                phase.batch_size >= max(initial, self.training.workers),
                name,
                phase.batch_size,
                f"must be at least training.workers = {self.training.workers} and "
                f"training.initial_batch_size = {initial}",
            )

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


def run_identity(config: TrainerConfig) -> dict[str, Any]:
    """Return every identity field of a run, what its data were made by too."""
    return {
        **documents_identity(config),
        **vocabulary_identity(config),
        **instances_identity(config),
        **training_identity(config),
    }


def training_identity(config: TrainerConfig) -> dict[str, Any]:
    """Return the identity fields that the training stage depends on, beside its shards."""
    identity: dict[str, Any] = {
        name: identity_fields(getattr(config, name))
        for name in ("model", "optimizer", "schedule", "training", "divergence", "evaluation")
    }
    identity["training"]["max_seq_length"] = 0 if config.phases else config.trained_length
    identity["phases"] = [identity_fields(phase) for phase in config.phases]
    # Static masks lie in the shards, whose fingerprint covers them.
    if config.masking.mode == "dynamic":
        identity["masking"] = identity_fields(config.masking)
    return {**identity, "seed": config.seed}
