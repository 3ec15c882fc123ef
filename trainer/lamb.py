"""LAMB: Adam's update of each matrix, scaled to the norm of that matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020, algorithm 2) with bias correction and phi(x) = x.

    The update of a matrix w is r = m / (sqrt(v) + eps) + weight_decay w, both moments corrected for
    their bias, and w falls by learning_rate (|w| / |r|) r; the ratio is 1 where either norm is 0.
    A group's "matrices" says how many matrices of one shape each of its parameters is, one below
    the other, each with a ratio of its own: so the fused query, key and value are updated as the
    papers' three. Where it is 0 (biases and norms, as ALBERT's released code leaves them out),
    parameters fall by learning_rate r.

    State of a parameter: step (float32 scalar), exp_avg, exp_avg_sq, as torch.optim.AdamW's.
    A step makes one temporary copy of the parameters.
    """

    def __init__(
        self,
        params: Sequence[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "matrices": 1}
        )

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Do one update of the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [one for one in group["params"] if one.grad is not None]
            if parameters:
                self._update(parameters, group)
        return loss

    def _update(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        gradients = [one.grad for one in parameters if one.grad is not None]
        states = [self._state(one) for one in parameters]
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        for state in states:
            state["step"] += 1
        done = float(states[0]["step"])
        torch._foreach_lerp_(means, gradients, 1.0 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - beta2)
        # r = (m / c1) / (sqrt(v / c2) + eps), in one temporary.
        updates = list(torch._foreach_sqrt(squares))
        torch._foreach_div_(updates, (1.0 - beta2**done) ** 0.5)
        torch._foreach_add_(updates, group["eps"])
        torch._foreach_reciprocal_(updates)
        torch._foreach_mul_(updates, means)
        torch._foreach_div_(updates, 1.0 - beta1**done)
        if group["weight_decay"]:
            torch._foreach_add_(updates, list(parameters), alpha=group["weight_decay"])
        if group["matrices"]:
            _scale_to_parameters(updates, parameters, group["matrices"])
        torch._foreach_add_(list(parameters), updates, alpha=-group["lr"])

    def _state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _scale_to_parameters(
    updates: Sequence[Tensor], parameters: Sequence[nn.Parameter], matrices: int
) -> None:
    """Multiply each matrix of `updates` by |w| / |r|, in place."""
    weights = [part for one in parameters for part in one.detach().chunk(matrices)]
    parts = [part for one in updates for part in one.chunk(matrices)]
    norms = torch.stack(torch._foreach_norm(weights))
    update_norms = torch.stack(torch._foreach_norm(parts))
    known = (norms > 0.0) & (update_norms > 0.0)
    ratios = torch.where(known, norms / update_norms, torch.ones_like(norms))
    torch._foreach_mul_(parts, list(ratios.unbind()))
