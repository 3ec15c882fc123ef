"""The [schedule] table of a run's TOML."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from pydantic import ConfigDict

from pipeline.config import STRICT, Identity, require


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """Learning rate and batch size over a run; the defaults are those of Devlin et al. 2019, A.2.

    Lengths are counted in what the run's length is given in: training.total_steps or total_tokens.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    warmup_steps: Identity[int] = 10_000
    """Steps over which the learning rate rises linearly to its peak; 0 with training.total_tokens,
    which takes warmup_tokens."""
    warmup_tokens: Identity[int] = 0
    """Tokens over which it rises where the run's length is training.total_tokens."""
    decay: Identity[Literal["linear", "polynomial", "cosine", "wsd", "constant"]] = "linear"
    """How it falls from the peak over the rest of the run; constant: it stays; wsd: it stays until
    the last decay_share of the run, then falls by 1 - sqrt (warm-up, stable, decay: Hu et al. 2024,
    4.1; Haegele et al. 2024, 3)."""
    power: Identity[float] = 1.0
    """Exponent of the share that remains (decay = "polynomial")."""
    decay_share: Identity[float] = 0.1
    """Share of the run over which it falls (decay = "wsd")."""
    final_share: Identity[float] = 0.0
    """Share of the peak that it falls to."""
    batch_size_warmup_steps: Identity[int] = 0
    """Steps over which the batch grows linearly, to any whole size between, from
    training.initial_batch_size to its full size; 0 with training.total_tokens."""
    batch_size_warmup_tokens: Identity[int] = 0
    """Tokens over which it grows where the run's length is training.total_tokens."""

    def __post_init__(self) -> None:
        for name in (
            "warmup_steps",
            "warmup_tokens",
            "batch_size_warmup_steps",
            "batch_size_warmup_tokens",
        ):
            value = getattr(self, name)
            require(value >= 0, f"schedule.{name}", value, "must be >= 0")
        require(0.0 < self.power <= 100.0, "schedule.power", self.power, "must be in (0, 100]")
        require(
            self.power == 1.0 or self.decay == "polynomial",
            "schedule.power",
            self.power,
            'is the exponent of schedule.decay = "polynomial"; leave it out',
        )
        require(
            0.0 < self.decay_share <= 1.0,
            "schedule.decay_share",
            self.decay_share,
            "must be in (0, 1]",
        )
        require(
            0.0 <= self.final_share <= 1.0,
            "schedule.final_share",
            self.final_share,
            "must be in [0, 1]",
        )
