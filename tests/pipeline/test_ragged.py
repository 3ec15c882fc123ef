"""Ragged rows: taken in any order, offsets checked before a compiled loop trusts them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ragged import check_offsets, read_only, take_rows


@given(
    rows=st.lists(st.lists(st.integers(0, 65_535), max_size=5), min_size=1, max_size=8),
    data=st.data(),
)
def test_rows_are_taken_in_the_order_asked_for(rows: list[list[int]], data: st.DataObject) -> None:
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12))
    values = np.array([value for row in rows for value in row], dtype=np.uint16)
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    taken, taken_offsets = take_rows(values, offsets, np.array(order, dtype=np.int64))
    assert taken.dtype == np.uint16 and taken_offsets.dtype == np.int64
    found = [
        taken[taken_offsets[row] : taken_offsets[row + 1]].tolist() for row in range(len(order))
    ]
    assert found == [rows[row] for row in order]


def test_a_read_only_view_shares_memory_and_refuses_writes() -> None:
    array = np.arange(6)
    view = read_only(array)
    assert np.shares_memory(view, array)
    assert array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    assert read_only(array[::2]).flags.c_contiguous


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([], "must rise"),
        ([-1, 2], "must rise"),
        ([0, 3, 2], "must rise"),
        ([0, 6], "at most 5"),
    ],
)
def test_offsets_that_would_read_foreign_memory_are_refused(
    offsets: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=f"row_offsets.*{message}"):
        check_offsets("row_offsets", np.array(offsets, dtype=np.int64), 5)


def test_offsets_within_the_values_are_taken() -> None:
    for offsets in ([0], [0, 5], [2, 2, 4]):
        check_offsets("row_offsets", np.array(offsets, dtype=np.int64), 5)
    with pytest.raises(ValueError, match="row_offsets are int32: must be int64"):
        check_offsets("row_offsets", np.array([0, 5], dtype=np.int32), 5)
