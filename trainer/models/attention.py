"""Self-attention inside the sequences of a flat batch, by the back end that fits the device.

A sliding window is given as its reach: position i attends to j of its sequence where
|i - j| <= reach; None is the whole sequence.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from trainer.data.batch import GridLayout, SequenceLayout
from trainer.models.attention_dropout import attention_with_dropout
from trainer.models.dropout import on_plain_cpu

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # A torch without it: every device has another back end.
    varlen_attn = None  # type: ignore[assignment]

# On the CPU: loop over the sequences, or pad them again for one call? Forward and backward on one
# core in ms, loop / padded: 64 rows of 115-128 tokens, 2 heads of 64: 51 / 52; 20-128: 30 / 47;
# 16-48: 20 / 21; 8-32: 11.5 / 8.8; 16 rows of 115-128, 8 heads: 44 / 50; 8 rows of 40-512, 8
# heads: 110 / 278, with dropout 584 / 1294 (no flash kernel then). So loop, but for short rows, and
# for rows all of one length, which are a grid already (64 x 128: 51 / 43).
_LOOP_MIN_LENGTH = 48
# A window on the CPU: bands over the flat batch, or a loop with a mask for each sequence? Forward
# and backward on two cores in ms, bands / whole sequences looped over, 12 heads of 64, reach 64,
# float32: 10 x 200 tokens: 85 / 46; 4 x 512: 68 / 71; 2 x 1,024: 77 / 149. So bands from eight
# times the reach on.
_BAND_MIN_REACHES = 8


def attention(
    qkv_T3ND: Tensor, layout: SequenceLayout, dropout: float, reach: int | None = None
) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)) V inside each sequence, [T, 3, N, D] -> [T, N, D]."""
    if isinstance(layout, GridLayout):
        return grid_attention(qkv_T3ND, layout, reach)
    if reach is not None and layout.max_length <= reach + 1:
        reach = None
    if qkv_T3ND.is_cuda and dropout == 0.0 and _has_flash_kernel(qkv_T3ND):
        return flash_varlen_attention(qkv_T3ND, layout, reach)
    if reach is not None:
        if qkv_T3ND.is_cuda or dropout or layout.max_length > _BAND_MIN_REACHES * reach:
            return banded_attention(qkv_T3ND, layout, dropout, reach)
        return looped_attention(qkv_T3ND, layout, dropout, reach)
    full = layout.max_length * len(layout.lengths) == qkv_T3ND.shape[0]
    if qkv_T3ND.is_cuda or full or layout.max_length < _LOOP_MIN_LENGTH:
        return padded_attention(qkv_T3ND, layout, dropout)
    return looped_attention(qkv_T3ND, layout, dropout)


def _has_flash_kernel(qkv_T3ND: Tensor) -> bool:
    """Tell whether there is the varlen kernel and it takes these tensors.

    It takes half precision, heads of a multiple of 8 up to 256, and devices from Ampere on.
    """
    size = qkv_T3ND.shape[-1]
    return (
        varlen_attn is not None
        and qkv_T3ND.dtype in (torch.float16, torch.bfloat16)
        and size <= 256
        and size % 8 == 0
        and torch.cuda.get_device_capability(qkv_T3ND.device) >= (8, 0)
    )


def flash_varlen_attention(
    qkv_T3ND: Tensor, layout: SequenceLayout, reach: int | None = None
) -> Tensor:
    """CUDA: one kernel over all sequences, no padding anywhere; it has no dropout."""
    query, key, value = qkv_T3ND.unbind(1)
    cu_seqlens, longest = layout.cu_seqlens, layout.max_length
    window = (-1, -1) if reach is None else (reach, reach)
    context = varlen_attn(
        query, key, value, cu_seqlens, cu_seqlens, longest, longest, window_size=window
    )
    assert isinstance(context, Tensor)
    return context


def looped_attention(
    qkv_T3ND: Tensor, layout: SequenceLayout, dropout: float, reach: int | None = None
) -> Tensor:
    """CPU: SDPA on one sequence after the other."""
    places = torch.arange(layout.max_length)
    near_LL = None if reach is None else (places[:, None] - places).abs() <= reach
    contexts = []
    for qkv_L3ND in torch.split(qkv_T3ND, list(layout.lengths)):
        if dropout and near_LL is None and on_plain_cpu(qkv_T3ND):
            contexts.append(attention_with_dropout(qkv_L3ND[None], None, dropout)[0])
            continue
        query, key, value = qkv_L3ND.unsqueeze(0).permute(2, 0, 3, 1, 4)
        mask = None if near_LL is None else near_LL[: qkv_L3ND.shape[0], : qkv_L3ND.shape[0]]
        context = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout
        )
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
    padded = padded.view(rows, longest, 3, heads, size)
    mask = None if full else layout.key_mask
    if dropout and on_plain_cpu(padded):
        context = attention_with_dropout(padded, mask, dropout)
    else:
        query, key, value = padded.permute(2, 0, 3, 1, 4)
        context = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout
        ).transpose(1, 2)
    context = context.reshape(rows * longest, heads, size)
    return context if full else context.index_select(0, layout.padded_rows)


def grid_attention(qkv_T3ND: Tensor, layout: GridLayout, reach: int | None = None) -> Tensor:
    """While tracing: one SDPA call on a grid of any size, without dropout."""
    rows, length = layout.attention_mask.shape
    heads, size = qkv_T3ND.shape[2:]
    query, key, value = qkv_T3ND.view(rows, length, 3, heads, size).permute(2, 0, 3, 1, 4)
    mask = layout.attention_mask[:, None, None, :]
    if reach is not None:
        places = torch.arange(length, device=mask.device)
        mask = mask & ((places[:, None] - places).abs() <= reach)
    context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return context.transpose(1, 2).reshape(rows * length, heads, size)


def banded_attention(
    qkv_T3ND: Tensor, layout: SequenceLayout, dropout: float, reach: int
) -> Tensor:
    """Any device: one SDPA call on blocks of the flat batch, each with the keys it can reach.

    A block of C queries has the C + 2 reach keys around it, whatever sequences they are of; a mask
    of as many cells keeps each query to its window and its sequence. Time and memory grow with
    the tokens, T (C + 2 reach), however long the sequences are.
    """
    tokens, _, heads, size = qkv_T3ND.shape
    block = band_block(reach)
    blocks = -(-tokens // block)
    query, key, value = functional.pad(
        qkv_T3ND, (0, 0, 0, 0, 0, 0, reach, reach + blocks * block - tokens)
    ).unbind(1)
    query = query[reach : reach + blocks * block].view(blocks, block, heads, size)
    # Views that overlap: [blocks, N, D, C + 2 reach], no copy of a key for each block it is in.
    key, value = (one.unfold(0, block + 2 * reach, block) for one in (key, value))
    context = functional.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(2, 3),
        value.transpose(2, 3),
        attn_mask=layout.band_mask(reach, block),
        dropout_p=dropout,
    )
    return context.transpose(1, 2).reshape(blocks * block, heads, size)[:tokens]


def band_block(reach: int) -> int:
    """Return C, the queries of a block: as many as there are keys beside it, but a whole tile."""
    return max(2 * reach, 32)


def reference_attention(
    qkv_T3ND: Tensor, layout: SequenceLayout, reach: int | None = None
) -> Tensor:
    """Vaswani et al. 2017, equation 1, written out for each sequence; the oracle of the tests."""
    contexts = []
    for qkv_L3ND in torch.split(qkv_T3ND, list(layout.lengths)):
        query, key, value = qkv_L3ND.unbind(1)
        scores_NLL = torch.einsum("lnd,mnd->nlm", query, key) / math.sqrt(query.shape[-1])
        if reach is not None:
            places = torch.arange(query.shape[0], device=query.device)
            far_LL = (places[:, None] - places).abs() > reach
            scores_NLL = scores_NLL.masked_fill(far_LL, -math.inf)
        contexts.append(torch.einsum("nlm,mnd->lnd", scores_NLL.softmax(-1), value))
    return torch.cat(contexts)
