"""The [divergence] table of a run's TOML: when a loss has jumped, and how often to go back."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from pydantic import ConfigDict

from pipeline.config import STRICT, Identity, Operational, require


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceConfig:
    """A loss that is not finite, or that jumps, takes the run back to its last good checkpoint.

    It goes on from there with the data after the step that went wrong. A loss jumps where it is
    above the median of the losses of the `window_steps` steps before it by more than margin_nats
    and by more than `deviations` times their median absolute deviation.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    window_steps: Identity[int] = 128
    """Steps a loss is compared with, of its own phase; before there are as many none jumps."""
    deviations: Identity[float] = 12.0
    """Median absolute deviations above the median that are too many."""
    margin_nats: Identity[float] = 1.0
    """Least height of a jump; inf: only a value that is not finite takes the run back."""
    max_rollbacks: Operational[int] = 4
    """Times a run goes back before it is given up."""

    def __post_init__(self) -> None:
        require(
            2 <= self.window_steps <= 10_000,
            "divergence.window_steps",
            self.window_steps,
            "must be in [2, 10000]",
        )
        for name in ("deviations", "margin_nats"):
            value = getattr(self, name)
            require(value > 0.0, f"divergence.{name}", value, "must be > 0")
        require(
            not math.isinf(self.deviations),
            "divergence.deviations",
            self.deviations,
            "must be finite; divergence.margin_nats = inf turns the rule off",
        )
        require(
            self.max_rollbacks >= 0,
            "divergence.max_rollbacks",
            self.max_rollbacks,
            "must be >= 0; 0 ends the run at the first",
        )
