"""Small models and random flat batches for the tests of the trainer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.data.batch import Batch
from trainer.models.encoder_model import EncoderForPreTraining, PairHead
from trainer.settings.model import ModelConfig

VOCAB_SIZE = 99
TINY = ModelConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=80,
    initializer_range=0.2,  # large, so that attention is far from uniform
)
MIXED_LENGTHS = (80, 7, 51, 1, 33)


def make_model(
    config: ModelConfig = TINY, seed: int = 0, pair_head: PairHead | None = "nsp"
) -> EncoderForPreTraining:
    return EncoderForPreTraining(config, VOCAB_SIZE, 0, pair_head=pair_head, seed=seed)


def make_batch(
    lengths: Sequence[int], seed: int = 0, masked_share: float = 0.2, pairs: bool = True
) -> Batch:
    draw = np.random.default_rng(seed)
    tokens = sum(lengths)
    masked = np.sort(draw.choice(tokens, round(masked_share * tokens), replace=False))
    return Batch(
        input_ids=draw.integers(5, VOCAB_SIZE, tokens),
        token_type_ids=draw.integers(0, 2, tokens),
        cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        masked_positions=masked,
        masked_lm_ids=draw.integers(5, VOCAB_SIZE, masked.size),
        pair_labels=draw.integers(0, 2, len(lengths)) if pairs else None,
    )


def take_rows(batch: Batch, rows: Sequence[int]) -> Batch:
    """Return some rows of a batch, in the given order, as a batch."""
    spans = [range(batch.cu_seqlens[row], batch.cu_seqlens[row + 1]) for row in rows]
    tokens = np.array([token for span in spans for token in span], dtype=np.int64)
    new_place = {int(token): place for place, token in enumerate(tokens)}
    kept = [i for i, token in enumerate(batch.masked_positions) if int(token) in new_place]
    kept.sort(key=lambda i: new_place[int(batch.masked_positions[i])])
    places = [new_place[int(batch.masked_positions[i])] for i in kept]
    labels = None if batch.pair_labels is None else batch.pair_labels[list(rows)]
    return Batch(
        input_ids=batch.input_ids[tokens],
        token_type_ids=batch.token_type_ids[tokens],
        cu_seqlens=np.cumsum([0] + [len(span) for span in spans]).astype(np.int32),
        masked_positions=np.array(places, dtype=np.int64),
        masked_lm_ids=batch.masked_lm_ids[kept],
        pair_labels=labels,
    )
