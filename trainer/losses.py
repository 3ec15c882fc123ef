"""Losses of a micro-batch as sums; the step divides by the denominators of the global batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

# Rows of logits that exist at a time: 256 x 8,192 float32 are 8 MB and stay in the cache of a CPU.
_CHUNK_ELEMENTS = 1 << 21


def masked_lm_loss(
    states_MH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor,
    labels_M: Tensor,
    vocab_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (sum of the cross entropies in nats, float32; how many argmax are right, int64).

    Equal to cross_entropy(linear(states, weight, bias), labels, reduction="sum"), computed in
    chunks of rows, so that the [M, V] logits never exist whole. Rows of the weight beyond
    `vocab_size` only pad it: they have probability 0 and gradient 0.
    """
    result: tuple[Tensor, Tensor] = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        states_MH, weight_VH, bias_V, labels_M, vocab_size or weight_VH.shape[0]
    )
    return result


def pair_loss(logits_B2: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return (sum of the cross entropies in nats; how many argmax are right, int64)."""
    wide = torch.promote_types(logits_B2.dtype, torch.float32)
    loss = functional.cross_entropy(logits_B2.to(wide), labels_B, reduction="sum")
    return loss, (logits_B2.argmax(1) == labels_B).sum()


class _LinearCrossEntropy(torch.autograd.Function):
    """The gradients are made in the forward pass, while a chunk's probabilities are there."""

    @staticmethod
    def forward(
        ctx: Any,
        states_MH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor,
        labels_M: Tensor,
        vocab_size: int,
    ) -> tuple[Tensor, Tensor]:
        device = states_MH.device.type
        low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        with torch.autocast(device, enabled=False):
            low = low or weight_VH.dtype
            return _forward(ctx, states_MH, weight_VH, bias_V, labels_M, vocab_size, low)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias = ctx.saved_tensors
        return states * grad_loss, weight * grad_loss, bias * grad_loss, None, None


def _forward(
    ctx: Any,
    states_MH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor,
    labels_M: Tensor,
    vocab_size: int,
    low: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Matrix products in `low` precision; softmax, loss and sums in float32 or wider."""
    wide = torch.promote_types(weight_VH.dtype, torch.float32)
    loss = states_MH.new_zeros((), dtype=wide)
    correct = labels_M.new_zeros(())
    low_states_MH, low_weight_VH, low_bias_V = states_MH.to(low), weight_VH.to(low), bias_V.to(low)
    needs_grad = any(ctx.needs_input_grad)
    if needs_grad:
        grad_states_MH = torch.empty_like(low_states_MH)
        grad_weight_VH = torch.zeros_like(weight_VH)
        grad_bias_V = torch.zeros_like(bias_V)
    rows = max(1, _CHUNK_ELEMENTS // weight_VH.shape[0])
    for start in range(0, states_MH.shape[0], rows):
        states = low_states_MH[start : start + rows]
        labels = labels_M[start : start + rows, None]
        logits = torch.addmm(low_bias_V, states, low_weight_VH.t()).to(wide)
        logits[:, vocab_size:] = -math.inf
        best, best_ids = logits.max(1, keepdim=True)
        correct += (best_ids == labels).sum()
        probabilities = logits.softmax(1)
        # The log of the largest probability cannot underflow: it is at least 1 / V.
        log_normalizer = best - probabilities.gather(1, best_ids).log()
        loss += (log_normalizer - logits.gather(1, labels)).sum()
        if needs_grad:
            grad_logits = probabilities.scatter_add_(1, labels, torch.full_like(best, -1.0))
            grad_bias_V += grad_logits.sum(0)
            grad_logits = grad_logits.to(low)
            torch.mm(grad_logits, low_weight_VH, out=grad_states_MH[start : start + rows])
            if low == weight_VH.dtype:
                grad_weight_VH.addmm_(grad_logits.t(), states)
            else:
                grad_weight_VH += grad_logits.t() @ states
    if needs_grad:
        ctx.save_for_backward(grad_states_MH.to(states_MH.dtype), grad_weight_VH, grad_bias_V)
    ctx.mark_non_differentiable(correct)
    return loss, correct
