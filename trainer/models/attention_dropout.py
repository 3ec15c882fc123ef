"""Attention with dropout of its weights on a CPU, where no fused kernel has any."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.models.dropout import keep_mask


def attention_with_dropout(
    qkv_BL3ND: Tensor, key_mask_B11L: Tensor | None, probability: float
) -> Tensor:
    """Return dropout(softmax(Q K^T / sqrt(D))) V, [B, L, N, D], in float32 or wider inside.

    Against scaled_dot_product_attention with dropout_p, which writes the products out as well:
    scales go into the products, masks come cheaper, rows are known not to be empty. Forward and
    backward of 16 x 128 tokens, 8 heads of 64, on two cores: see docs/reference/benchmarks.md.
    """
    context: Tensor = _AttentionWithDropout.apply(  # type: ignore[no-untyped-call]
        qkv_BL3ND, key_mask_B11L, probability
    )
    return context


class _AttentionWithDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv_BL3ND: Tensor, key_mask_B11L: Tensor | None, probability: float
    ) -> Tensor:
        batch, length, _, heads, size = qkv_BL3ND.shape
        wide = torch.promote_types(qkv_BL3ND.dtype, torch.float32)
        qkv = qkv_BL3ND.new_empty(3, batch, heads, length, size, dtype=wide)
        qkv.copy_(qkv_BL3ND.permute(2, 0, 3, 1, 4))  # layout and precision in one pass
        query, key, value = qkv.flatten(1, 2)
        scores = _product(query, key.transpose(1, 2), 1.0 / math.sqrt(size))
        if key_mask_B11L is not None:
            grid = scores.view(batch, heads, length, length)
            grid.masked_fill_(key_mask_B11L.logical_not(), -math.inf)
        weights = torch.softmax(scores, -1, out=scores)
        mask, ctx.keep_scale = keep_mask(weights.shape, probability, wide)
        context = _product(weights * mask, value, ctx.keep_scale)
        ctx.save_for_backward(qkv, weights, mask)
        out = qkv_BL3ND.new_empty(batch, length, heads, size)
        return out.copy_(context.view(batch, heads, length, size).transpose(1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BLND: Tensor) -> tuple[Tensor | None, ...]:
        qkv, weights, mask = ctx.saved_tensors
        query, key, value = qkv.flatten(1, 2)
        grad = grad_BLND.transpose(1, 2).to(qkv.dtype).reshape(value.shape)
        gradients = torch.empty_like(qkv)
        grad_query, grad_key, grad_value = gradients.flatten(1, 2)
        _product((weights * mask).transpose(1, 2), grad, ctx.keep_scale, grad_value)
        grad_weights = _product(grad, value.transpose(1, 2), ctx.keep_scale).mul_(mask)
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        scale = 1.0 / math.sqrt(query.shape[-1])
        _product(grad_scores, key, scale, grad_query)
        _product(grad_scores.transpose(1, 2), query, scale, grad_key)
        batch, length, heads, size = grad_BLND.shape
        out = grad_BLND.new_empty(batch, length, 3, heads, size)
        return out.copy_(gradients.permute(1, 3, 0, 2, 4)), None, None


def _product(left: Tensor, right: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Return scale * left @ right of batches of matrices."""
    if out is None:
        out = left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    return torch.baddbmm(out, left, right, beta=0.0, alpha=scale, out=out)
