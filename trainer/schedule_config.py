"""The [schedule] table of a run's TOML."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from pydantic import ConfigDict

from pipeline.config import STRICT, Identity, require


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """Learning rate over the steps of a run; the defaults are those of Devlin et al. 2019, A.2."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    warmup_steps: Identity[int] = 10_000
    """Steps over which the learning rate rises linearly to its peak."""
    decay: Identity[Literal["linear", "cosine", "constant"]] = "linear"
    """How it falls from the peak to zero over the remaining steps; constant: it stays."""

    def __post_init__(self) -> None:
        require(self.warmup_steps >= 0, "schedule.warmup_steps", self.warmup_steps, "must be >= 0")
