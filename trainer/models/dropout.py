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

    Sixteen random bits a value, from a SFC64 stream that one draw of torch's generator seeds: torch
    draws a value at a time from a Mersenne twister, 8.7 ms for 1 M values on two cores, this 1.7.
    So torch.manual_seed fixes the mask, as it does torch's own.
    """
    # Here, so that a GPU, which never comes here, needs torch alone.
    import numpy as np

    count = math.prod(shape)
    seed = int(torch.randint(2**63 - 1, (), dtype=torch.int64))
    stream = np.random.Generator(np.random.SFC64(seed))
    words = stream.integers(0, 1 << 64, -(-count // 4), dtype=np.uint64)
    bits = torch.from_numpy(words.view(np.int16)[:count]).view(tuple(shape))
    dropped_of_65536 = min(round(probability * 65_536), 65_535)
    kept = bits >= dropped_of_65536 - 32_768
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
