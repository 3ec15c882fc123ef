"""Dropout whose random bits cost little on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


def dropout(values: Tensor, probability: float, training: bool) -> Tensor:
    """Return `values` with that share of them zero and the others scaled up to keep the mean."""
    if not training or probability == 0.0:
        return values
    if not on_plain_cpu(values):
        return functional.dropout(values, probability)
    dropped: Tensor = _Dropout.apply(values, None, probability)  # type: ignore[no-untyped-call]
    return dropped


def dropout_add(values: Tensor, residual: Tensor, probability: float, training: bool) -> Tensor:
    """Return residual + dropout(values) in one pass over them."""
    if not training or probability == 0.0:
        return residual + values
    if not on_plain_cpu(values):
        return residual + functional.dropout(values, probability)
    total: Tensor = _Dropout.apply(values, residual, probability)  # type: ignore[no-untyped-call]
    return total


def on_plain_cpu(values: Tensor) -> bool:
    """Tell whether the ways made for an uncompiled CPU are to be taken."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def keep_mask(shape: Sequence[int], probability: float, dtype: torch.dtype) -> tuple[Tensor, float]:
    """Return (1 where a value is kept, else 0; the factor that keeps the mean), on the CPU.

    Sixteen bits a value, of Philox with a key that is one draw of torch's generator: so
    torch.manual_seed fixes the mask, as it does torch's own, which are drawn a value at a time.
    For 1 M values that takes 8.7 ms on two cores, this 0.5 on one.
    """
    # Here, so that a GPU, which never comes here, needs torch alone: no numba.
    from trainer.dropout_bits import fill_kept

    count = math.prod(shape)
    key = int(torch.randint(2**63 - 1, (), dtype=torch.int64))
    dropped_of_65536 = min(round(probability * 65_536), 65_535)
    kept_8B = torch.empty(8, -(-count // 8))
    fill_kept(kept_8B.numpy(), key, dropped_of_65536)
    kept = kept_8B.view(-1)[:count].view(tuple(shape))
    return kept.to(dtype), 65_536 / (65_536 - dropped_of_65536)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, residual: Tensor | None, probability: float) -> Tensor:
        mask, ctx.scale = keep_mask(values.shape, probability, values.dtype)
        ctx.save_for_backward(mask)
        ctx.has_residual = residual is not None
        if residual is None:
            return torch.mul(values, mask).mul_(ctx.scale)
        if residual.dtype == values.dtype:
            return torch.addcmul(residual, values, mask, value=ctx.scale)
        return torch.add(residual, values * mask, alpha=ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (mask,) = ctx.saved_tensors
        grad_values = torch.mul(grad.to(mask.dtype), mask).mul_(ctx.scale)
        return grad_values, grad if ctx.has_residual else None, None
