"""From a run's configuration and its instance sets to its updates: what is read, and how."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import CorruptError
from pipeline.identity import masking_identity
from pipeline.instance_set import InstanceSet
from trainer.config import TrainerConfig
from trainer.data.epoch_order import RecordBatches, Unit
from trainer.data.phases import Phase, Source, check_masking, check_phases
from trainer.data.plan import DataPlan
from trainer.settings.phase import MixedSourceConfig, PhaseConfig
from trainer.step_plan import PlannedPhase, StepPlan


def open_sources(config: TrainerConfig, instances: InstanceSet) -> list[tuple[Source, ...]]:
    """Return the instance sets of each phase, given any set of the run's own generation.

    Raises InputError for a length that a generation has no set of.
    """
    return [
        tuple(
            Source(instances=_set(instances, phase, one), weight=one.weight)
            for one in phase.sources or (MixedSourceConfig(),)
        )
        for phase in config.resolved_phases
    ]


def _set(own: InstanceSet, phase: PhaseConfig, source: MixedSourceConfig) -> InstanceSet:
    if source.root:
        return InstanceSet.open(source.root, phase.max_seq_length)
    generation = own.generation
    manifest = generation.manifest()
    if manifest is None:
        raise CorruptError(f"{own.uri}: its manifest is gone; run `python -m pipeline run` again")
    return InstanceSet.one_of(generation, manifest, phase.max_seq_length)


def step_plan(config: TrainerConfig, sources: Sequence[Sequence[Source]]) -> StepPlan:
    """Return the plan of the run's updates; `sources` has the sets of each phase.

    Raises ConfigError for a phase that is less than one update.
    """
    by_tokens = config.training.batch_unit == "tokens"
    return StepPlan(
        [
            PlannedPhase(
                share=phase.share,
                batch_size=phase.batch_size,
                peak=phase.learning_rate,
                tokens_per_unit=1.0 if by_tokens else _mean_tokens(of_phase),
            )
            for phase, of_phase in zip(config.resolved_phases, sources, strict=True)
        ],
        budget=config.budget,
        schedule=config.schedule,
        initial_batch_size=config.training.initial_batch_size,
    )


def loader_phases(
    config: TrainerConfig, sources: Sequence[Sequence[Source]], plan: StepPlan
) -> list[Phase]:
    """Return what the loader serves in each phase."""
    training = config.training
    return [
        Phase(
            sources=tuple(of_phase),
            batch_size=plan.batch_size,
            micro_batch_size=training.micro_batch_size,
            steps=plan.phase_steps(number),
            unit=training.batch_unit,
        )
        for number, of_phase in enumerate(sources)
    ]


def require_data(
    config: TrainerConfig, sources: Sequence[Sequence[Source]], plan: StepPlan
) -> None:
    """Raise ConfigError where the sets do not fit the model or one another, or are too small.

    And InputError for a set without held-out instances. Before any worker is started: each of
    them would refuse the same, some of it only when it comes to evaluate.
    """
    phases = loader_phases(config, sources, plan)
    check_phases(phases, max_seq_length=config.positions)
    # The sets agree with one another by now; none of them need be the run's own.
    first = sources[0][0].instances
    check_masking(first, masking_identity(config), "this run", "training.phases.0.sources.0")
    DataPlan(phases, config.training.workers)
    for of_phase in sources:
        for source in of_phase:
            source.instances.shards("held_out")


def _total(source: Source, unit: Unit) -> int:
    return int(RecordBatches.of(source.instances.shards("train")).units(unit).sum())


def _mean_tokens(sources: Sequence[Source]) -> float:
    """Return the mean tokens of a sequence of a mixture."""
    total = sum(source.weight for source in sources)
    mean = 0.0
    for source in sources:
        mean += source.weight / total * _total(source, "tokens") / _total(source, "sequences")
    return mean
