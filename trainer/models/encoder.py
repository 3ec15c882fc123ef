"""The stack of transformer layers over flat tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from trainer.batch import SequenceLayout
from trainer.model_config import ModelConfig
from trainer.models.attention import SelfAttention

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
}


class FeedForward(nn.Module):
    """The position-wise block and its post-norm residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = config.hidden_dropout_prob

    def forward(self, hidden_TH: Tensor) -> Tensor:
        """Return LayerNorm(x + FFN(x)), [T, H] (Vaswani et al. 2017, 3.3)."""
        output_TH = self.output(self.activation(self.intermediate(hidden_TH)))
        output_TH = functional.dropout(output_TH, self.dropout, self.training)
        return self.layer_norm(output_TH + hidden_TH)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """L layers, each a self-attention block and a feed-forward block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        layers = range(config.num_hidden_layers)
        # Two lists, not one of layers: the blocks of a kind are what a paper may share.
        self.attention = nn.ModuleList(SelfAttention(config) for _ in layers)
        self.feed_forward = nn.ModuleList(FeedForward(config) for _ in layers)

    def forward(self, hidden_TH: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the last layer's output, [T, H]."""
        for attention, feed_forward in zip(self.attention, self.feed_forward, strict=True):
            hidden_TH = feed_forward(attention(hidden_TH, layout))
        return hidden_TH
