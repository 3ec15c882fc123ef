"""What a run reads, phase by phase: instance sets, their weights, the size of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.config import require
from pipeline.errors import ConfigError
from pipeline.instance_set import InstanceSet
from trainer.data.epoch_order import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One instance set of a mixture."""

    instances: InstanceSet
    weight: float = 1.0
    """Its share of every batch's units, relative to the other sources' weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Some steps of a run over one mixture of sources.

    `batch_size` returns the units of a step's global batch by the number of the step in the run,
    so that it may be warmed up. Units are sequences, or tokens as a mean: the tokens of a batch
    differ from it by part of a row for each lane, and over the steps that evens out exactly.
    """

    sources: tuple[Source, ...]
    batch_size: Callable[[int], int]
    micro_batch_size: int
    """Units of one forward pass at most."""
    steps: int | None = None
    """Steps of the phase; None: without end."""
    unit: Unit = "sequences"


def set_name(instances: InstanceSet) -> str:
    """Return what a loader's state calls an instance set by."""
    return f"{instances.generation.fingerprint}/{instances.max_seq_length}"


def check_phases(phases: Sequence[Phase], *, max_seq_length: int | None = None) -> None:
    """Raise ConfigError unless one model, with `max_seq_length` positions, can take all phases."""
    if not phases:
        raise ConfigError("training.phases = []: must have at least one phase")
    first = phases[0].sources[0].instances if phases[0].sources else None
    for number, phase in enumerate(phases):
        where = f"training.phases.{number}"
        if not phase.sources or first is None:
            raise ConfigError(f"{where}.sources = []: must have at least one instance set")
        if phase.steps is None:
            if number + 1 < len(phases):
                raise ConfigError(f"{where}.steps: is missing; only the last phase may have none")
        else:
            require(phase.steps >= 1, f"{where}.steps", phase.steps, "must be at least 1")
        require(
            phase.micro_batch_size >= 1,
            "training.micro_batch_size",
            phase.micro_batch_size,
            "must be at least 1",
        )
        for at, source in enumerate(phase.sources):
            key = f"{where}.sources.{at}"
            if not 0.0 < source.weight < float("inf"):
                raise ConfigError(f"{key}.weight = {source.weight}: must be a finite number > 0")
            _check_same_model(source.instances, first, key)
            length = source.instances.max_seq_length
            if max_seq_length is not None and length > max_seq_length:
                raise ConfigError(
                    f"{key}: {source.instances.uri} has rows of up to {length} tokens, the model "
                    f"positions for {max_seq_length}: raise model.max_position_embeddings, or "
                    "take instances of a smaller instances.max_seq_length"
                )


def _check_same_model(instances: InstanceSet, first: InstanceSet, key: str) -> None:
    vocabularies = [one.manifest["tokenizer"]["vocab_txt"]["sha256"] for one in (first, instances)]
    if vocabularies[0] != vocabularies[1]:
        raise ConfigError(
            f"{key}: {instances.uri} was made with a vocabulary of {instances.vocab_size} entries, "
            f"SHA-256 {vocabularies[1][:12]}, {first.uri} with one of {first.vocab_size}, "
            f"{vocabularies[0][:12]}: one model has one vocabulary; make both with the same"
        )
    if instances.objective != first.objective:
        raise ConfigError(
            f'{key}: {instances.uri} has the objective "{instances.objective}", {first.uri} '
            f'"{first.objective}": one run has one pair head; make both with the same'
        )
    check_masking(instances, first.manifest["masking"], first.uri, key)


def check_masking(instances: InstanceSet, masking: Mapping[str, Any], owner: str, key: str) -> None:
    """Raise ConfigError unless a set's masks are made as `masking`, which `owner` has, says.

    Both as pipeline.identity.masking_identity returns them: of dynamic masks the mode alone, since
    the set holds none.
    """
    own = instances.manifest["masking"]
    if own == masking:
        return
    differing = [name for name in sorted({*own, *masking}) if own.get(name) != masking.get(name)]
    # Of two modes only one has further settings.
    names = ["mode"] if "mode" in differing else differing
    theirs, ours = (
        ", ".join(f"masking.{name} = {of.get(name)!r}" for name in names) for of in (own, masking)
    )
    raise ConfigError(
        f"{key}: {instances.uri} was made with {theirs}, {owner} has {ours}: static masks are in "
        "the shards and would stay as they are; make both with the same"
    )


def divide(units: int, weights: Sequence[float], given: Sequence[int]) -> list[int]:
    """Divide the units of a step over sources that gave `given` before, int.

    What a source gave stays by its weight's share of all units, within a unit or two, whatever
    the sizes of the steps: the largest remainders get what is left over, of equal ones the first.
    """
    share = np.array(weights) / sum(weights)
    due = (sum(given) + units) * share - np.array(given)
    parts = np.floor(due).clip(0.0).astype(np.int64)
    while parts.sum() < units:
        parts[np.argmax(due - parts)] += 1
    # A source that is ahead of its share gives nothing, so that others may owe more than all.
    while parts.sum() > units:
        parts[np.argmin(np.where(parts > 0, due - parts, np.inf))] -= 1
    return [int(part) for part in parts]
