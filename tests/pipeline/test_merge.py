"""The merge pass: what goes, what is repeated, and the objects it writes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline import merge
from pipeline.contract import DOCUMENT_SCHEMA
from pipeline.errors import InputError
from pipeline.merge import read_documents, write_documents
from tests.pipeline.test_documents import merged, raw_documents, run_table, some_texts


@pytest.mark.parametrize("batch_bytes", [1, 40, 1000, 1 << 30])
def test_documents_are_read_back_from_any_number_of_record_batches(
    monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    monkeypatch.setattr(merge, "_BATCH_TEXT_BYTES", batch_bytes)
    table = merged([run_table(raw_documents(some_texts(30)))])
    data = write_documents([table])
    assert read_documents(data).equals(table)
    batches = pa.ipc.open_file(pa.BufferReader(data)).num_record_batches
    assert {1: 30, 1 << 30: 1}.get(batch_bytes, batches) == batches
    if batch_bytes == 40:
        assert 1 < batches < 30


def test_documents_without_sentences_are_not_lost() -> None:
    rows = {"document_hash": [b"0" * 16, b"1" * 16], "document_key": ["a", "b"]}
    for sentences in ([[], []], [[], ["x"]], [["x"], []]):
        table = pa.table({**rows, "sentences": sentences}, schema=DOCUMENT_SCHEMA)
        assert read_documents(write_documents([table])).equals(table)


def test_an_empty_partition_is_an_object_too() -> None:
    data = write_documents([merged([])])
    assert read_documents(data).equals(DOCUMENT_SCHEMA.empty_table())


def test_two_documents_of_one_key_are_refused() -> None:
    table = run_table(raw_documents(some_texts(5)))
    with pytest.raises(InputError, match=r"sources\[news\]: 1 document keys .* news/a/file.txt#"):
        merged([table, table.slice(2, 1)])
