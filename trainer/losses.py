"""Losses of a micro-batch as sums; the step divides by the denominators of the global batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

# Logits that exist at a time, in elements of float32. On the CPU, forward and backward in ms, two
# cores, 307 masked tokens, 30,522 entries, H = 512, float32 / bfloat16: chunks of 2 M: 183 / 123;
# 4 M: 164 / 128; 8 M: 165 / 95; whole: 153 / 75. A GPU needs more rows to be full.
_CHUNK_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 26}
# Rows of a low-precision product that are added to the float32 gradient while they are in cache.
_CAST_ROWS = 4_096


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
        if ctx.gradients is None:
            raise RuntimeError("the gradients of masked_lm_loss can be taken once")
        # In place: a copy of the [V, H] gradient costs as much as one of its matrix products.
        scaled = [gradient.mul_(grad_loss) for gradient in ctx.gradients]
        ctx.gradients = None
        return *scaled, None, None


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
    masked, padded_size = states_MH.shape[0], weight_VH.shape[0]
    rows = _chunk_rows(masked, _CHUNK_ELEMENTS[states_MH.device.type] // padded_size)
    needs_grad = any(ctx.needs_input_grad)
    if needs_grad:
        grad_states_MH = torch.empty_like(low_states_MH)
        grad_weight_VH = torch.empty_like(weight_VH) if masked else torch.zeros_like(weight_VH)
        grad_bias_V = torch.zeros_like(bias_V)
    buffer = low_states_MH.new_empty(min(rows, masked), padded_size)
    for start in range(0, masked, rows):
        states = low_states_MH[start : start + rows]
        labels = labels_M[start : start + rows, None]
        low_logits = buffer[: states.shape[0]]
        torch.addmm(low_bias_V, states, low_weight_VH.t(), out=low_logits)
        logits = low_logits.to(wide)
        logits[:, vocab_size:] = -math.inf
        best, best_ids = logits.max(1, keepdim=True)
        correct += (best_ids == labels).sum()
        of_labels = logits.gather(1, labels)
        probabilities = torch.softmax(logits, 1, out=logits)
        # The log of the largest probability cannot underflow: it is at least 1 / V.
        log_normalizer = best - probabilities.gather(1, best_ids).log()
        loss += (log_normalizer - of_labels).sum()
        if needs_grad:
            grad_logits = probabilities.scatter_add_(1, labels, torch.full_like(best, -1.0))
            grad_bias_V += grad_logits.sum(0)
            low_grad = grad_logits if low == wide else low_logits.copy_(grad_logits)
            torch.mm(low_grad, low_weight_VH, out=grad_states_MH[start : start + rows])
            _add_product(grad_weight_VH, low_grad, states, first=start == 0)
    ctx.gradients = None
    if needs_grad:
        ctx.gradients = [grad_states_MH.to(states_MH.dtype), grad_weight_VH, grad_bias_V]
    ctx.mark_non_differentiable(correct)
    return loss, correct


def _chunk_rows(rows: int, limit: int) -> int:
    """Return the size of the fewest chunks that keep to `limit`, all but equal."""
    chunks = -(-rows // max(1, limit))
    return max(1, -(-rows // max(1, chunks)))


def _add_product(total_VH: Tensor, grad_RV: Tensor, states_RH: Tensor, *, first: bool) -> None:
    """Add grad^T states to `total`, which holds nothing yet if this is the first product."""
    if total_VH.dtype == grad_RV.dtype:
        # beta = 0 does not read what lies there.
        torch.addmm(total_VH, grad_RV.t(), states_RH, beta=0.0 if first else 1.0, out=total_VH)
        return
    for start in range(0, total_VH.shape[0], _CAST_ROWS):
        end = start + _CAST_ROWS
        product = grad_RV[:, start:end].t() @ states_RH
        if first:
            total_VH[start:end].copy_(product)
        else:
            total_VH[start:end].add_(product)
