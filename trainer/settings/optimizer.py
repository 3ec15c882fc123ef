"""The [optimizer] table of a run's TOML."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from pipeline.config_fields import STRICT, Identity, require


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """The optimizer; the defaults are those of Devlin et al. 2019, A.2."""

    __pydantic_config__ = STRICT

    name: Identity[Literal["adamw", "lamb"]] = "adamw"
    """adamw: Adam with decoupled weight decay (Loshchilov and Hutter 2019); lamb: its update scaled
    for each matrix to that matrix's norm, for large batches (You et al. 2020)."""
    learning_rate: Identity[float] = 1e-4
    """Peak learning rate, reached at the end of the warm-up."""
    betas: Identity[tuple[float, float]] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square."""
    eps: Identity[float] = 1e-6
    """Added to the root of the second moment (released code of BERT: 1e-6)."""
    weight_decay: Identity[float] = 0.01
    """Decoupled weight decay; never of biases and LayerNorm weights."""
    clip_norm: Identity[float] = 1.0
    """Largest global norm of the gradient; inf turns clipping off."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "eps"):
            value = getattr(self, name)
            require(
                0.0 < value < math.inf, f"optimizer.{name}", value, "must be a finite number > 0"
            )
        require(
            all(0.0 <= beta < 1.0 for beta in self.betas),
            "optimizer.betas",
            list(self.betas),
            "each must be in [0, 1)",
        )
        require(
            0.0 <= self.weight_decay < 1.0,
            "optimizer.weight_decay",
            self.weight_decay,
            "must be in [0, 1)",
        )
        require(
            self.clip_norm > 0.0,
            "optimizer.clip_norm",
            self.clip_norm,
            "must be > 0; inf turns clipping off",
        )
