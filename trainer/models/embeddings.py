"""Token, position and segment embeddings of a flat batch."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from trainer.data.batch import TensorBatch
from trainer.models.dropout import dropout, on_plain_cpu
from trainer.settings.model import ModelConfig


class Embeddings(nn.Module):
    """Sum of token, learned absolute position and segment vectors (Devlin et al. 2019, 3).

    With rotary positions, or without segments, that table is not there; with an embedding_size
    the sum is brought to the encoder's width (Lan et al. 2020, 3.1).
    """

    position_embeddings: nn.Embedding | None
    token_type_embeddings: nn.Embedding | None
    projection: nn.Linear | None

    def __init__(self, config: ModelConfig, vocab_size: int, pad_token_id: int) -> None:
        super().__init__()
        width = config.embedding_width
        self.word_embeddings = nn.Embedding(config.padded_vocab_size(vocab_size), width)
        absolute = config.position_embedding_type == "absolute"
        rows = config.max_position_embeddings
        self.position_embeddings = nn.Embedding(rows, width) if absolute else None
        types = config.type_vocab_size
        self.token_type_embeddings = nn.Embedding(types, width) if types else None
        self.layer_norm = nn.LayerNorm(width, eps=config.layer_norm_eps, bias=config.bias)
        projected = config.embedding_size > 0
        self.projection = (
            nn.Linear(width, config.hidden_size, bias=config.bias) if projected else None
        )
        self.first_position = config.first_position(pad_token_id)
        self.dropout = config.embedding_dropout
        self.sparse_gradient = False
        """Give the tokens' gradient as rows, for a decoder to add to its own, which is of all."""

    def forward(self, batch: TensorBatch) -> Tensor:
        """Return the embedded tokens, [T, H]."""
        sparse = self.sparse_gradient and on_plain_cpu(self.word_embeddings.weight)
        embedded_TE = functional.embedding(
            batch.input_ids, self.word_embeddings.weight, sparse=sparse
        )
        if self.token_type_embeddings is not None:
            embedded_TE = embedded_TE + self.token_type_embeddings(batch.token_type_ids)
        if self.position_embeddings is not None:
            rows = batch.layout.position_ids + self.first_position
            embedded_TE = embedded_TE + self.position_embeddings(rows)
        embedded_TE = dropout(self.layer_norm(embedded_TE), self.dropout, self.training)
        return embedded_TE if self.projection is None else self.projection(embedded_TE)
