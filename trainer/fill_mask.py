"""What a trained model puts in the place of [MASK]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tokenizers
import torch

from pipeline.errors import InputError
from trainer.data.batch import Batch
from trainer.models.encoder_model import EncoderForPreTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One candidate for a masked token."""

    token: str
    probability: float


def fill_mask(
    model: EncoderForPreTraining, tokenizer: tokenizers.Tokenizer, text: str, top_k: int
) -> list[list[Prediction]]:
    """Return for each [MASK] of `text`, in order, its `top_k` likeliest tokens, likeliest first.

    Raises InputError when there is no [MASK], when the text is longer than the model's position
    table, or when top_k is not in [1, vocabulary].
    """
    if not 1 <= top_k <= model.vocab_size:
        raise InputError(f"top_k = {top_k}: must be in [1, {model.vocab_size}]")
    cls_id, sep_id, mask_id = (
        _special_id(tokenizer, token) for token in ("[CLS]", "[SEP]", "[MASK]")
    )
    pieces = tokenizer.encode(text, add_special_tokens=False).ids
    input_ids = np.array([cls_id, *pieces, sep_id], dtype=np.int64)
    positions = np.flatnonzero(input_ids == mask_id)
    if positions.size == 0:
        raise InputError(f"no [MASK] in {text!r}: write [MASK] where a token is to be guessed")
    limit = model.max_seq_length
    if input_ids.size > limit:
        raise InputError(
            f"the text has {input_ids.size} tokens with [CLS] and [SEP]: "
            f"the model takes {limit}; shorten it"
        )
    batch = Batch(
        input_ids=input_ids,
        token_type_ids=np.zeros_like(input_ids),
        cu_seqlens=np.array([0, input_ids.size], dtype=np.int32),
        masked_positions=positions,
        masked_lm_ids=input_ids[positions],
        pair_labels=None,
    )
    inputs = model.inputs(batch)
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        logits_MV = model(inputs).masked_logits
        best = logits_MV.float().softmax(1).topk(top_k)
    model.train(was_training)
    return [
        [
            Prediction(token=str(tokenizer.id_to_token(token)), probability=probability)
            for token, probability in zip(ids, probabilities, strict=True)
        ]
        for ids, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def _special_id(tokenizer: tokenizers.Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        raise InputError(f"the vocabulary has no {token}: it is not one of a BERT model")
    return int(token_id)
