"""Run files: groups of rows, each read and verified by its byte range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.documents import RUN_SCHEMA
from pipeline.errors import CorruptError
from pipeline.runs import grouped_bytes, read_piece
from pipeline.storage import LocalStorage
from tests.pipeline.test_documents import raw_documents, run_table, some_texts


def test_each_group_of_an_object_is_read_by_its_range(tmp_path: Path) -> None:
    table = run_table(raw_documents(some_texts(40)))
    group = np.array([(number * 7) % 5 for number in range(40)])
    group[group == 3] = 4  # one group in the middle, and the last, are empty
    data, pieces = grouped_bytes(table, group, 6)
    storage = LocalStorage(str(tmp_path))
    storage.create("object", data)
    assert [piece.group for piece in pieces] == [0, 1, 2, 4]
    assert [piece.start for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]
    assert (pieces[0].start, pieces[-1].end) == (0, len(data))
    for piece in pieces:
        part = read_piece(storage, "object", piece)
        assert part.schema == RUN_SCHEMA
        assert part.equals(table.filter(pa.array(group == piece.group)))


def test_a_flipped_byte_anywhere_in_a_group_is_named_with_its_range(tmp_path: Path) -> None:
    table = run_table(raw_documents(some_texts(20)))
    data, pieces = grouped_bytes(table, np.arange(20) % 2, 2)
    storage = LocalStorage(str(tmp_path))
    path = tmp_path / "object"
    for position in range(0, len(data), 97):
        damaged = bytearray(data)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        hit = next(piece for piece in pieces if piece.start <= position < piece.end)
        for piece in pieces:
            if piece is hit:
                message = f"{path}: bytes {piece.start} to {piece.end}: CRC-32 differs"
                with pytest.raises(CorruptError, match=message):
                    read_piece(storage, "object", piece)
            else:
                assert read_piece(storage, "object", piece).num_rows == 10
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptError, match="cut short or changed"):
        read_piece(storage, "object", pieces[1])
