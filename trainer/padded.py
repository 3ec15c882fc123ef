"""Padded batches, as transformers' collators and tokenizers make them, as flat ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError
from trainer.data.batch import Batch

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
    model gives them), for a label on padding, for a batch of no rows, and for arrays of other
    shapes, types or values. Which ids there are only the model knows: its `inputs` checks them.
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
    _require_whole_numbers({**columns, "pair_labels": pair_labels_B})
    rows = input_ids_BL.shape[0]
    if rows == 0:
        raise InputError("padded batch: input_ids has no rows: a batch has one at least")
    if pair_labels_B is not None:
        _require_pair_labels(pair_labels_B, rows)
    lengths = _lengths(attention_mask_BL)
    real_BL = attention_mask_BL == 1
    cu_seqlens = np.zeros(lengths.size + 1, dtype=np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    tokens = int(cu_seqlens[-1])
    labels = np.full(tokens, IGNORED_LABEL, dtype=np.int64)
    if labels_BL is not None:
        on_padding = np.argwhere((labels_BL != IGNORED_LABEL) & ~real_BL)
        if on_padding.size:
            raise InputError(
                f"row {on_padding[0, 0]} of the padded batch: labels are not {IGNORED_LABEL} on "
                "padding: nothing can be predicted there"
            )
        unknown = np.argwhere((labels_BL < 0) & (labels_BL != IGNORED_LABEL))
        if unknown.size:
            row, place = unknown[0]
            raise InputError(
                f"row {row} of the padded batch: labels = {labels_BL[row, place]} at token "
                f"{place}: must be an id, or {IGNORED_LABEL} where nothing is to be predicted"
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


def _require_whole_numbers(columns: Mapping[str, NDArray[np.integer] | None]) -> None:
    """Raise InputError for an array of floats, say, which would be cut; a mask may be bool."""
    for name, values in columns.items():
        kinds = "iub" if name == "attention_mask" else "iu"
        if values is not None and values.dtype.kind not in kinds:
            raise InputError(
                f"padded batch: {name} is an array of {values.dtype}: must hold whole numbers"
            )


def _require_pair_labels(labels_B: NDArray[np.integer], rows: int) -> None:
    if labels_B.shape != (rows,):
        raise InputError(
            f"padded batch: pair_labels is {list(labels_B.shape)}, must be one a row: [{rows}]"
        )
    other = np.flatnonzero((labels_B != 0) & (labels_B != 1))
    if other.size:
        row = other[0]
        raise InputError(
            f"row {row} of the padded batch: pair_labels = {labels_B[row]}: must be 0 or 1"
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
