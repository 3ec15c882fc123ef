"""LAMB written plainly after You et al. 2020, algorithm 2, one parameter at a time."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class PlainLamb:
    """phi(x) = x, with bias correction; vectors are neither decayed nor scaled (ALBERT)."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        self.parameters = list(parameters)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.steps = 0
        self.means = [torch.zeros_like(one) for one in self.parameters]
        self.squares = [torch.zeros_like(one) for one in self.parameters]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        self.steps += 1
        beta1, beta2 = self.betas
        for weight, mean, square in zip(self.parameters, self.means, self.squares, strict=True):
            assert weight.grad is not None
            mean.copy_(beta1 * mean + (1 - beta1) * weight.grad)
            square.copy_(beta2 * square + (1 - beta2) * weight.grad**2)
            corrected = mean / (1 - beta1**self.steps)
            update = corrected / ((square / (1 - beta2**self.steps)).sqrt() + self.eps)
            ratio = 1.0
            if weight.ndim > 1:
                update = update + self.weight_decay * weight
                if weight.norm() > 0 and update.norm() > 0:
                    ratio = float(weight.norm() / update.norm())
            weight.sub_(learning_rate * ratio * update)
