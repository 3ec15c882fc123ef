"""Self-attention inside the sequences of a flat batch, by the back end that fits the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn

from trainer.batch import SequenceLayout
from trainer.model_config import ModelConfig

# On the CPU: loop over the sequences, or pad them again for one call? Forward and backward on one
# core in ms, loop / padded: 64 rows of 115-128 tokens, 2 heads of 64: 51 / 52; 20-128: 30 / 47;
# 16-48: 20 / 21; 8-32: 11.5 / 8.8; 16 rows of 115-128, 8 heads: 44 / 50; 8 rows of 40-512, 8
# heads: 110 / 278, with dropout 584 / 1294 (no flash kernel then). So loop, but for short rows, and
# for rows all of one length, which are a grid already (64 x 128: 51 / 43).
_LOOP_MIN_LENGTH = 48


class SelfAttention(nn.Module):
    """Multi-head self-attention of one layer (or of all), with its residual and its norm."""

    layer_norm: nn.LayerNorm | None

    def __init__(self, config: ModelConfig, *, normed: bool = True) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.num_heads = config.num_attention_heads
        # Query, key and value in this order: one product over the tokens, not three.
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=config.bias)
        self.output = nn.Linear(hidden, hidden, bias=config.bias)
        self.pre_norm = config.norm_position == "pre"
        self.layer_norm = (
            nn.LayerNorm(hidden, eps=config.layer_norm_eps, bias=config.bias) if normed else None
        )
        self.attention_dropout = config.attention_probs_dropout_prob
        self.hidden_dropout = config.hidden_dropout_prob

    def forward(self, hidden_TH: Tensor, layout: SequenceLayout) -> Tensor:
        """Return LayerNorm(x + Attention(x)), [T, H] (Vaswani et al. 2017, 3.1: post-LN).

        With pre-LN: x + Attention(LayerNorm(x)) (Xiong et al. 2020).
        """
        tokens, hidden = hidden_TH.shape
        read_TH = (
            self.layer_norm(hidden_TH)
            if self.pre_norm and self.layer_norm is not None
            else hidden_TH
        )
        qkv_T3ND = self.qkv(read_TH).view(tokens, 3, self.num_heads, hidden // self.num_heads)
        dropout = self.attention_dropout if self.training else 0.0
        context_TH = attention(qkv_T3ND, layout, dropout).view(tokens, hidden)
        output_TH = functional.dropout(self.output(context_TH), self.hidden_dropout, self.training)
        output_TH = output_TH + hidden_TH
        return output_TH if self.pre_norm or self.layer_norm is None else self.layer_norm(output_TH)


def attention(qkv_T3ND: Tensor, layout: SequenceLayout, dropout: float) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)) V inside each sequence, [T, 3, N, D] -> [T, N, D]."""
    if qkv_T3ND.is_cuda:
        if dropout == 0.0 and _has_flash_kernel(qkv_T3ND):
            return flash_varlen_attention(qkv_T3ND, layout)
        return padded_attention(qkv_T3ND, layout, dropout)
    full = layout.max_length * len(layout.lengths) == qkv_T3ND.shape[0]
    if full or layout.max_length < _LOOP_MIN_LENGTH:
        return padded_attention(qkv_T3ND, layout, dropout)
    return looped_attention(qkv_T3ND, layout, dropout)


def _has_flash_kernel(qkv_T3ND: Tensor) -> bool:
    """Tell whether the varlen kernel takes these tensors: half precision, heads to 256, Ampere."""
    return (
        qkv_T3ND.dtype in (torch.float16, torch.bfloat16)
        and qkv_T3ND.shape[-1] <= 256
        and torch.cuda.get_device_capability(qkv_T3ND.device) >= (8, 0)
    )


def flash_varlen_attention(qkv_T3ND: Tensor, layout: SequenceLayout) -> Tensor:
    """CUDA: one kernel over all sequences, no padding anywhere; it has no dropout."""
    query, key, value = qkv_T3ND.unbind(1)
    cu_seqlens, longest = layout.cu_seqlens, layout.max_length
    context = varlen_attn(query, key, value, cu_seqlens, cu_seqlens, longest, longest)
    assert isinstance(context, Tensor)
    return context


def looped_attention(qkv_T3ND: Tensor, layout: SequenceLayout, dropout: float) -> Tensor:
    """CPU: SDPA on one sequence after the other."""
    contexts = []
    for qkv_L3ND in torch.split(qkv_T3ND, list(layout.lengths)):
        query, key, value = qkv_L3ND.unsqueeze(0).permute(2, 0, 3, 1, 4)
        context = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        contexts.append(context[0].transpose(0, 1))
    return torch.cat(contexts)


def padded_attention(qkv_T3ND: Tensor, layout: SequenceLayout, dropout: float) -> Tensor:
    """Any device: one SDPA call on [B, N, L, D], the padding being masked out as keys."""
    tokens, _, heads, size = qkv_T3ND.shape
    rows, longest = len(layout.lengths), layout.max_length
    full = rows * longest == tokens
    padded = qkv_T3ND
    if not full:
        grid = qkv_T3ND.new_zeros(rows * longest, 3, heads, size)
        padded = grid.index_copy(0, layout.padded_rows, qkv_T3ND)
    query, key, value = padded.view(rows, longest, 3, heads, size).permute(2, 0, 3, 1, 4)
    mask = None if full else layout.key_mask
    context = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout
    )
    context = context.transpose(1, 2).reshape(rows * longest, heads, size)
    return context if full else context.index_select(0, layout.padded_rows)


def reference_attention(qkv_T3ND: Tensor, layout: SequenceLayout) -> Tensor:
    """Vaswani et al. 2017, equation 1, written out for each sequence; the oracle of the tests."""
    contexts = []
    for qkv_L3ND in torch.split(qkv_T3ND, list(layout.lengths)):
        query, key, value = qkv_L3ND.unbind(1)
        scores_NLL = torch.einsum("lnd,mnd->nlm", query, key) / math.sqrt(query.shape[-1])
        contexts.append(torch.einsum("nlm,mnd->lnd", scores_NLL.softmax(-1), value))
    return torch.cat(contexts)
