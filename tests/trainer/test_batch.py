from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.errors import TrainingError
from tests.trainer.batches import make_batch
from trainer.data.batch import Batch, check_batch, to_tensors


def check(batch: Batch) -> None:
    check_batch(batch, vocab_size=99, max_seq_length=80, type_vocab_size=2)


def with_value(name: str, index: int, value: int) -> Batch:
    batch = make_batch([10, 20, 30])
    values = getattr(batch, name).copy()
    values[index] = value
    return replace(batch, **{name: values})


def test_a_sound_batch_passes() -> None:
    check(make_batch([80, 1, 33]))
    check(make_batch([80, 1, 33], pairs=False, masked_share=0.0))


def test_sequence_over_the_position_table_is_refused_with_row_and_limit() -> None:
    with pytest.raises(TrainingError, match=r"row 1 .* has 81 tokens: .* positions for 80"):
        check(make_batch([80, 81]))


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("input_ids", 12, 99, "row 1 .*input_ids = 99: the vocabulary has 99"),
        ("input_ids", 0, -1, "row 0 .*input_ids = -1"),
        ("token_type_ids", 59, 2, "row 2 .*token_type_ids = 2: model.type_vocab_size = 2"),
        ("masked_positions", -1, 60, "masked_positions = 60"),
        ("masked_lm_ids", 0, 99, "masked_lm_ids = 99"),
        ("pair_labels", 1, 2, "row 1 .*pair_labels = 2"),
    ],
)
def test_id_outside_its_table_is_refused_with_row_and_limit(
    name: str, index: int, value: int, message: str
) -> None:
    with pytest.raises(TrainingError, match=message):
        check(with_value(name, index, value))


@pytest.mark.parametrize(
    "starts", [[0, 10, 10, 60], [0, 10, 30, 59], [1, 10, 30, 60], [0, 30, 10, 60], [0]]
)
def test_offsets_that_do_not_divide_the_tokens_are_refused(starts: list[int]) -> None:
    batch = replace(make_batch([10, 20, 30]), cu_seqlens=np.array(starts, dtype=np.int32))
    with pytest.raises(TrainingError, match="cu_seqlens"):
        check(batch)


@pytest.mark.parametrize("name", ["token_type_ids", "masked_lm_ids", "pair_labels"])
def test_columns_of_unequal_length_are_refused(name: str) -> None:
    batch = make_batch([10, 20, 30])
    short: dict[str, Any] = {name: getattr(batch, name)[:-1]}
    with pytest.raises(TrainingError, match=f"{name} has"):
        check(replace(batch, **short))


def test_layout_counts_positions_anew_in_each_sequence() -> None:
    layout = to_tensors(make_batch([2, 3, 1]), torch.device("cpu")).layout
    assert layout.lengths == (2, 3, 1)
    assert layout.max_length == 3
    assert layout.position_ids.tolist() == [0, 1, 0, 1, 2, 0]
    assert layout.first_tokens.tolist() == [0, 2, 5]
    assert layout.padded_rows.tolist() == [0, 1, 3, 4, 5, 6]
    assert layout.key_mask[:, 0, 0].int().tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0]]


def test_read_only_arrays_are_taken() -> None:
    batch = make_batch([4])
    batch.input_ids.flags.writeable = False
    tensors = to_tensors(batch, torch.device("cpu"))
    assert tensors.input_ids.tolist() == batch.input_ids.tolist()
