"""Padded batches, as transformers' collators and tokenizers make them, as flat ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError
from trainer.batch import Batch

# The label of a token that is not to be predicted (torch's cross_entropy, transformers).
IGNORED_LABEL = -100


def flatten_padded(
    input_ids_BL: NDArray[np.integer],
    attention_mask_BL: NDArray[np.integer],
    *,
    token_type_ids_BL: NDArray[np.integer] | None = None,
    labels_BL: NDArray[np.integer] | None = None,
    pair_labels_B: NDArray[np.integer] | None = None,
) -> Batch:
    """Return a padded batch as a flat one: the tokens whose attention_mask is 1, row by row.

    `labels_BL` is -100 where nothing is to be predicted; without it nothing is. Without
    `token_type_ids_BL` every token is of segment 0.

    Raises InputError, naming the row, for a row that is all padding, which a flat batch cannot
    hold, for padding before or between tokens (their positions would not be those that the padded
    model gives them), for a label on padding, and for arrays of other shapes or values.
    """
    columns = {
        "input_ids": input_ids_BL,
        "attention_mask": attention_mask_BL,
        "token_type_ids": token_type_ids_BL,
        "labels": labels_BL,
    }
    for name, values in columns.items():
        if values is not None and (values.ndim != 2 or values.shape != input_ids_BL.shape):
            raise InputError(
                f"padded batch: {name} is {list(values.shape)}, input_ids "
                f"{list(input_ids_BL.shape)}: must both be [rows, tokens]"
            )
    lengths = _lengths(attention_mask_BL)
    real_BL = attention_mask_BL == 1
    cu_seqlens = np.zeros(lengths.size + 1, dtype=np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    tokens = int(cu_seqlens[-1])
    labels = np.full(tokens, IGNORED_LABEL, dtype=np.int64)
    if labels_BL is not None:
        rows = np.flatnonzero(((labels_BL != IGNORED_LABEL) & ~real_BL).any(1))
        if rows.size:
            raise InputError(
                f"row {rows[0]} of the padded batch: labels are not {IGNORED_LABEL} on padding: "
                "nothing can be predicted there"
            )
        labels = labels_BL[real_BL].astype(np.int64)
    masked_positions = np.flatnonzero(labels != IGNORED_LABEL)
    return Batch(
        input_ids=input_ids_BL[real_BL].astype(np.int64),
        token_type_ids=np.zeros(tokens, dtype=np.int64)
        if token_type_ids_BL is None
        else token_type_ids_BL[real_BL].astype(np.int64),
        cu_seqlens=cu_seqlens,
        masked_positions=masked_positions,
        masked_lm_ids=labels[masked_positions],
        pair_labels=None if pair_labels_B is None else pair_labels_B.astype(np.int64),
    )


def _lengths(attention_mask_BL: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the tokens of each row, [B]; InputError unless each is some 1, then 0 to the end."""
    other = np.argwhere((attention_mask_BL != 0) & (attention_mask_BL != 1))
    if other.size:
        row, place = other[0]
        raise InputError(
            f"row {row} of the padded batch: attention_mask = {attention_mask_BL[row, place]} at "
            f"token {place}: must be 1 on tokens and 0 on padding"
        )
    lengths: NDArray[np.int64] = attention_mask_BL.sum(1, dtype=np.int64)
    empty = np.flatnonzero(lengths == 0)
    if empty.size:
        raise InputError(
            f"row {empty[0]} of the padded batch is all padding: its attention_mask has no 1; "
            "leave it out, a flat batch has no empty sequences"
        )
    places = np.arange(attention_mask_BL.shape[1])
    holes = np.argwhere((attention_mask_BL == 0) & (places < lengths[:, None]))
    if holes.size:
        row, place = holes[0]
        raise InputError(
            f"row {row} of the padded batch: attention_mask is 0 at token {place} and 1 after it: "
            'padding must come last; tokenize with padding_side = "right"'
        )
    return lengths
