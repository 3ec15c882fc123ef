"""The self-attention block of a layer, and the rotary positions it may turn its queries by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.data.batch import SequenceLayout
from trainer.models.attention import attention
from trainer.models.dropout import dropout_add
from trainer.settings.model import ModelConfig


@dataclass(frozen=True, slots=True)
class Rotation:
    """Angles of the rotary positions of a batch (Su et al. 2021, 3.4.2)."""

    cos: Tensor
    """[T, 1, 1, D / 2] float32 or wider."""
    sin: Tensor
    """As cos."""


def rotation(position_ids: Tensor, head_size: int, theta: float, dtype: torch.dtype) -> Rotation:
    """Return the angles position / theta^(2 i / D), computed in float32 as published models do."""
    powers = torch.arange(0, head_size, 2, device=position_ids.device, dtype=torch.float32)
    frequencies = 1.0 / (theta ** (powers / head_size))
    angles_TD = position_ids.float()[:, None] * frequencies
    cos_TD, sin_TD = angles_TD.cos().to(dtype), angles_TD.sin().to(dtype)
    return Rotation(cos_TD[:, None, None], sin_TD[:, None, None])


def rotate(qkv_T3ND: Tensor, by: Rotation) -> Tensor:
    """Turn queries and keys; dimension i and i + D / 2 are a pair, as in GPT-NeoX."""
    query_key, value = qkv_T3ND[:, :2], qkv_T3ND[:, 2:]
    # In float32 at least: half precision would lose the angle.
    first, second = query_key.to(by.cos.dtype).chunk(2, dim=-1)
    turned = torch.cat([first * by.cos - second * by.sin, second * by.cos + first * by.sin], -1)
    return torch.cat([turned.to(qkv_T3ND.dtype), value], dim=1)


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

    def forward(
        self,
        hidden_TH: Tensor,
        layout: SequenceLayout,
        reach: int | None = None,
        by: Rotation | None = None,
    ) -> Tensor:
        """Return LayerNorm(x + Attention(x)), [T, H] (Vaswani et al. 2017, 3.1: post-LN).

        With pre-LN: x + Attention(LayerNorm(x)) (Xiong et al. 2020). `reach` is the farthest
        token that is attended to (None: any of the sequence), `by` the rotary positions.
        """
        tokens, hidden = hidden_TH.shape
        read_TH = (
            self.layer_norm(hidden_TH)
            if self.pre_norm and self.layer_norm is not None
            else hidden_TH
        )
        qkv_T3ND = self.qkv(read_TH).view(tokens, 3, self.num_heads, hidden // self.num_heads)
        if by is not None:
            qkv_T3ND = rotate(qkv_T3ND, by)
        dropout = self.attention_dropout if self.training else 0.0
        return self.finish(attention(qkv_T3ND, layout, dropout, reach), hidden_TH)

    def finish(self, context_TND: Tensor, hidden_TH: Tensor) -> Tensor:
        """Return the block's output from what attention gave and what the block was given."""
        output_TH = self.output(context_TND.reshape(hidden_TH.shape))
        output_TH = dropout_add(output_TH, hidden_TH, self.hidden_dropout, self.training)
        return output_TH if self.pre_norm or self.layer_norm is None else self.layer_norm(output_TH)
