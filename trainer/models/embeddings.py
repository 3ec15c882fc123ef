"""Token, position and segment embeddings of a flat batch."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from trainer.batch import TensorBatch
from trainer.model_config import ModelConfig


class Embeddings(nn.Module):
    """Sum of token, learned absolute position and segment vectors (Devlin et al. 2019, 3)."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.word_embeddings = nn.Embedding(vocab_size, hidden)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, hidden)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, hidden)
        self.layer_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.dropout = config.hidden_dropout_prob

    def forward(self, batch: TensorBatch) -> Tensor:
        """Return the embedded tokens, [T, H]."""
        hidden_TH = (
            self.word_embeddings(batch.input_ids)
            + self.token_type_embeddings(batch.token_type_ids)
            + self.position_embeddings(batch.layout.position_ids)
        )
        return functional.dropout(self.layer_norm(hidden_TH), self.dropout, self.training)
