from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError, TrainingError
from tests.trainer.batches import TINY, VOCAB_SIZE, make_batch, make_model
from tests.trainer.padded_batches import pad
from trainer.padded import flatten_padded

IDS = np.array([[2, 7, 8, 3], [2, 9, 3, 0], [2, 3, 0, 0]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]])


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.booleans())
def test_padding_a_flat_batch_and_flattening_it_changes_nothing(
    lengths: list[int], pairs: bool
) -> None:
    batch = make_batch(lengths, masked_share=0.3, pairs=pairs)
    padded = pad(batch)
    again = flatten_padded(
        padded.input_ids,
        padded.attention_mask,
        token_type_ids_BL=padded.token_type_ids,
        labels_BL=padded.labels,
        pair_labels_B=batch.pair_labels,
    )
    for name in ("input_ids", "token_type_ids", "cu_seqlens", "masked_positions", "masked_lm_ids"):
        np.testing.assert_array_equal(getattr(again, name), getattr(batch, name), err_msg=name)
    np.testing.assert_equal(again.pair_labels, batch.pair_labels)


def test_without_labels_and_segments_nothing_is_masked_and_all_is_segment_0() -> None:
    batch = flatten_padded(IDS, MASK)
    assert batch.input_ids.tolist() == [2, 7, 8, 3, 2, 9, 3, 2, 3]
    assert batch.cu_seqlens.tolist() == [0, 4, 7, 9]
    assert not batch.token_type_ids.any()
    assert batch.masked_positions.size == 0
    assert batch.pair_labels is None


def test_a_row_that_is_all_padding_is_refused_by_its_number() -> None:
    mask = MASK.copy()
    mask[1] = 0
    with pytest.raises(InputError, match=r"row 1 of the padded batch is all padding"):
        flatten_padded(IDS, mask)


@pytest.mark.parametrize("row", [[0, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 1]], ids=str)
def test_padding_before_or_between_tokens_is_refused(row: list[int]) -> None:
    mask = MASK.copy()
    mask[2] = row
    with pytest.raises(InputError, match=rf"row 2 .* is 0 at token {row.index(0)} and 1 after it"):
        flatten_padded(IDS, mask)


def test_a_mask_of_other_values_a_label_on_padding_and_other_shapes_are_refused() -> None:
    with pytest.raises(InputError, match=r"row 0 .*attention_mask = -3 at token 0"):
        flatten_padded(IDS, MASK - 4)
    labels = np.full(IDS.shape, -100)
    labels[1, 3] = 5
    with pytest.raises(InputError, match=r"row 1 .*labels are not -100 on padding"):
        flatten_padded(IDS, MASK, labels_BL=labels)
    with pytest.raises(InputError, match=r"attention_mask is \[3, 3\], input_ids \[3, 4\]"):
        flatten_padded(IDS, MASK[:, :3])
    with pytest.raises(InputError, match=r"must both be \[rows, tokens\]"):
        flatten_padded(IDS[0], MASK[0])


def test_floats_other_labels_and_a_batch_without_rows_are_refused() -> None:
    with pytest.raises(InputError, match=r"input_ids is an array of float64: must hold whole"):
        flatten_padded(IDS + 0.7, MASK)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"row 0 .*labels = -1 at token 0: must be an id, or -100"):
        flatten_padded(IDS, MASK, labels_BL=np.where(MASK == 1, -1, -100))
    with pytest.raises(InputError, match=r"pair_labels is \[2\], must be one a row: \[3\]"):
        flatten_padded(IDS, MASK, pair_labels_B=np.array([0, 1]))
    with pytest.raises(InputError, match=r"row 2 .*pair_labels = 9: must be 0 or 1"):
        flatten_padded(IDS, MASK, pair_labels_B=np.array([0, 1, 9]))
    with pytest.raises(InputError, match=r"input_ids has no rows"):
        flatten_padded(IDS[:0], MASK[:0])


@pytest.mark.parametrize("positions", ["absolute", "rotary"])
def test_what_a_model_cannot_read_is_refused_by_row_and_value(
    positions: Literal["absolute", "rotary"],
) -> None:
    config = dataclasses.replace(
        TINY,
        architecture="custom",
        position_embedding_type=positions,
        max_position_embeddings=4,
        pad_vocab_size_to_multiple_of=64,
    )
    model = make_model(config)
    assert model.inputs(flatten_padded(IDS, MASK)).input_ids.numel() == 9
    changed = IDS.copy()
    for value in (VOCAB_SIZE, -1):  # VOCAB_SIZE has a row, which only pads the table
        changed[1, 2] = value
        with pytest.raises(TrainingError, match=rf"row 1 of the batch: input_ids = {value}: "):
            model.inputs(flatten_padded(changed, MASK))
    with pytest.raises(TrainingError, match=r"row 0 of the batch has 5 tokens: .* for 4"):
        model.inputs(flatten_padded(np.full((1, 5), 7), np.ones((1, 5), dtype=np.int64)))
    with pytest.raises(TrainingError, match=r"row 0 of the batch: token_type_ids = 2: "):
        model.inputs(flatten_padded(IDS, MASK, token_type_ids_BL=np.full(IDS.shape, 2)))
    labels = np.where(MASK == 1, VOCAB_SIZE, -100)
    with pytest.raises(TrainingError, match=rf"row 0 of the batch: masked_lm_ids = {VOCAB_SIZE}: "):
        model.inputs(flatten_padded(IDS, MASK, labels_BL=labels))


def test_a_padding_token_among_the_tokens_is_refused_where_positions_begin_behind_it() -> None:
    config = dataclasses.replace(TINY, architecture="custom", position_offset="after_pad_token_id")
    ids = IDS.copy()
    ids[1, 1] = 0
    with pytest.raises(
        TrainingError, match=r"row 1 of the batch: input_ids = 0 at token 1: the pad"
    ):
        make_model(config).inputs(flatten_padded(ids, MASK))
    assert make_model(config).inputs(flatten_padded(IDS, MASK)).input_ids.numel() == 9
    # Elsewhere a token is what its id says: transformers counts positions alike.
    assert make_model().inputs(flatten_padded(ids, MASK)).input_ids.numel() == 9
