"""The [[phases]] tables of a run's TOML: parts of one training on other lengths or mixtures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import ConfigDict

from pipeline.config import STRICT, Identity, Operational, require


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MixedSourceConfig:
    """An instance set that a phase mixes into every batch."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    root: Operational[str] = ""
    """Root of a run with the same vocabulary, objective and masking (of dynamic masks the mode
    alone), whose instances are read, held-out ones too; empty: this run's."""
    weight: Identity[float] = 1.0
    """Its share of every batch, relative to the other sources' weights."""

    def __post_init__(self) -> None:
        require(
            0.0 < self.weight < math.inf,
            "phases.sources.weight",
            self.weight,
            "must be a finite number > 0",
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PhaseConfig:
    """One of several phases of a run, in their order (Devlin et al. 2019, A.2: 128, then 512)."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    max_seq_length: Identity[int]
    """Which of the lengths of instances.max_seq_length it trains on."""
    share: Identity[float]
    """Its share of training.total_steps or total_tokens; those of all phases add up to 1."""
    batch_size: Identity[int] = 0
    """Sequences of one update; 0: training.batch_size."""
    learning_rate: Identity[float] = 0.0
    """Peak learning rate, which the schedule's share is taken of; 0: optimizer.learning_rate."""
    sources: Identity[tuple[MixedSourceConfig, ...]] = ()
    """Instance sets that are mixed in every batch; none: this run's alone."""

    def __post_init__(self) -> None:
        require(0.0 < self.share <= 1.0, "phases.share", self.share, "must be in (0, 1]")
        require(self.batch_size >= 0, "phases.batch_size", self.batch_size, "must be >= 0")
        require(
            0.0 <= self.learning_rate < math.inf,
            "phases.learning_rate",
            self.learning_rate,
            "must be a finite number > 0, or 0 for optimizer.learning_rate",
        )


def phase_ends(shares: Sequence[float], total: int) -> tuple[int, ...]:
    """Return where each phase ends, in the unit of the run's length; the last at `total`.

    Raises ConfigError unless the shares add up to 1 and give every phase something to do.
    """
    require(
        math.isclose(math.fsum(shares), 1.0, abs_tol=1e-9),
        "phases.share",
        list(shares),
        "must add up to 1",
    )
    ends = [round(total * math.fsum(shares[: number + 1])) for number in range(len(shares))]
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        require(
            start < end,
            f"phases.{number}.share",
            shares[number],
            f"is nothing of a run of {total}; raise it or leave the phase out",
        )
    return tuple(ends)
