"""The stack of transformer layers over flat tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainer.data.batch import SequenceLayout
from trainer.models.dropout import dropout_add
from trainer.models.self_attention import Rotation, SelfAttention, rotation
from trainer.settings.model import ModelConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
}


class FeedForward(nn.Module):
    """The position-wise block with its residual and its norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gated = config.feed_forward == "geglu"
        # Gated: what is activated and what it is multiplied with, in this order, in one product.
        self.intermediate = nn.Linear(hidden, 2 * inner if self.gated else inner, bias=config.bias)
        self.output = nn.Linear(inner, hidden, bias=config.bias)
        self.layer_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps, bias=config.bias)
        self.pre_norm = config.norm_position == "pre"
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = config.hidden_dropout_prob

    def forward(self, hidden_TH: Tensor) -> Tensor:
        """Return LayerNorm(x + FFN(x)), [T, H] (Vaswani et al. 2017, 3.3), or x + FFN(LN(x))."""
        inner_TI = self.intermediate(self.layer_norm(hidden_TH) if self.pre_norm else hidden_TH)
        if self.gated:
            activated_TI, gate_TI = inner_TI.chunk(2, dim=-1)
            inner_TI = self.activation(activated_TI) * gate_TI
        else:
            inner_TI = self.activation(inner_TI)
        output_TH = dropout_add(self.output(inner_TI), hidden_TH, self.dropout, self.training)
        return output_TH if self.pre_norm else self.layer_norm(output_TH)


class Encoder(nn.Module):
    """L layers, each a self-attention block and a feed-forward block, shared or each its own."""

    final_norm: nn.LayerNorm | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        layers, sharing = config.num_hidden_layers, config.parameter_sharing
        self.config = config
        self.activation_checkpointing = False
        """Keep only the input of each layer for the backward pass, and compute the rest again."""
        # Two lists, not one of layers: the blocks of a kind are what a paper may share.
        own_attention = sharing not in ("attention", "all")
        attentions = layers if own_attention else 1
        feed_forwards = 1 if sharing in ("ffn", "all") else layers
        pre_norm = config.norm_position == "pre"
        # What the first layer reads comes out of the embeddings' norm (Warner et al. 2024, 2.1.1).
        self.attention = nn.ModuleList(
            SelfAttention(config, normed=not (pre_norm and own_attention and layer == 0))
            for layer in range(attentions)
        )
        self.feed_forward = nn.ModuleList(FeedForward(config) for _ in range(feed_forwards))
        self.final_norm = (
            nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.bias)
            if pre_norm
            else None
        )

    def forward(self, hidden_TH: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the last layer's output, [T, H]."""
        config = self.config
        window = config.local_attention_window // 2
        by_global = self._rotation(hidden_TH, layout, config.global_rope_theta)
        by_local = self._rotation(hidden_TH, layout, config.local_rope_theta)
        saving = self.activation_checkpointing and torch.is_grad_enabled()
        for layer in range(config.num_hidden_layers):
            is_global = config.is_global(layer)
            where = (None, by_global) if is_global else (window, by_local)
            if saving:
                hidden_TH = checkpoint(
                    self._layer, layer, hidden_TH, layout, *where, use_reentrant=False
                )
            else:
                hidden_TH = self._layer(layer, hidden_TH, layout, *where)
        return hidden_TH if self.final_norm is None else self.final_norm(hidden_TH)

    def _layer(
        self,
        layer: int,
        hidden_TH: Tensor,
        layout: SequenceLayout,
        window: int | None,
        rotated: Rotation | None,
    ) -> Tensor:
        attention = self.attention[layer % len(self.attention)]
        feed_forward = self.feed_forward[layer % len(self.feed_forward)]
        output_TH: Tensor = feed_forward(attention(hidden_TH, layout, window, rotated))
        return output_TH

    def compile_blocks(self) -> None:
        """Compile the blocks, for any number of tokens; names stay as they are.

        Attention itself is left out: its kernels loop over the sequences of a batch, whose lengths
        are others every time.
        """
        for attention in self.attention:
            assert isinstance(attention, SelfAttention)
            finish = torch.compile(attention.finish, dynamic=True, fullgraph=True)
            attention.finish = partial(_finish_of_no_view, finish)  # type: ignore[method-assign]
        for feed_forward in self.feed_forward:
            feed_forward.compile(dynamic=True, fullgraph=True)

    def _rotation(self, hidden_TH: Tensor, layout: SequenceLayout, theta: float) -> Rotation | None:
        config = self.config
        if config.position_embedding_type != "rotary":
            return None
        wide = torch.promote_types(hidden_TH.dtype, torch.float32)
        head_size = config.hidden_size // config.num_attention_heads
        return rotation(layout.position_ids, head_size, theta, wide)


def _finish_of_no_view(
    finish: Callable[[Tensor, Tensor], Tensor], context_TND: Tensor, hidden_TH: Tensor
) -> Tensor:
    """Call a compiled `finish`, whose code is for any number of tokens but not for any view.

    It would be compiled again for each kind of tensor that the context is a view of (a grid of
    one row, of several, a flat batch with its end cut off), until torch's limit ends the training.
    The varlen kernel and the loop over sequences give no views.
    """
    return finish(context_TND.clone() if context_TND._is_view() else context_TND, hidden_TH)
