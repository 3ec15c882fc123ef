"""What is put on top of the encoder for pre-training (Devlin et al. 2019, 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.models.encoder import ACTIVATIONS
from trainer.settings.model import ModelConfig


class Pooler(nn.Module):
    """tanh(dense) of a sequence's first token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)

    def forward(self, first_BH: Tensor) -> Tensor:
        """Return the pooled sequences, [B, H]."""
        return torch.tanh(self.dense(first_BH))


class MaskedLMHead(nn.Module):
    """dense, activation, LayerNorm; then the token embeddings as decoder, with a bias of its own.

    The decoder's matrix is no parameter of the head, so it cannot come apart from the embeddings.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        width = config.embedding_width
        self.dense = nn.Linear(config.hidden_size, width, bias=config.bias)
        self.layer_norm = nn.LayerNorm(width, eps=config.layer_norm_eps, bias=config.bias)
        self.decoder_bias = nn.Parameter(torch.empty(config.padded_vocab_size(vocab_size)))
        self.vocab_size = vocab_size
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden_MH: Tensor) -> Tensor:
        """Return what the decoder takes, [M, E]."""
        return self.layer_norm(self.activation(self.dense(hidden_MH)))  # type: ignore[no-any-return]

    def decode(self, transformed_ME: Tensor, word_embeddings_VE: Tensor) -> Tensor:
        """Return the logits, [M, V], of the vocabulary without the rows that pad it."""
        size = self.vocab_size
        weight_VE, bias_V = word_embeddings_VE[:size], self.decoder_bias[:size]
        return functional.linear(transformed_ME, weight_VE, bias_V)
