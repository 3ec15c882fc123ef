"""A partition of documents in blocks: every document once, whatever the size of the file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pipeline import document_blocks as module
from pipeline.commit import Generation
from pipeline.contract import DOCUMENT_SCHEMA, ObjectEntry
from pipeline.document_blocks import document_blocks
from pipeline.errors import CorruptError
from pipeline.merge import write_documents

TEXT = "A sentence of some length that fills a record batch after a while. " * 3


def partition(root: Path, batches: int) -> tuple[Generation, ObjectEntry, pa.Table]:
    """A documents file of so many record batches of ten documents, the last of three."""
    tables = []
    for number in range(batches):
        rows = 10 if number + 1 < batches else 3
        keys = [f"s/f#{number * 10 + row}.0" for row in range(rows)]
        columns = {
            "document_hash": [number.to_bytes(16, "big")] * rows,
            "document_key": keys,
            "sentences": [[f"{key} {TEXT}", TEXT] for key in keys],
        }
        tables.append(pa.table(columns, schema=DOCUMENT_SCHEMA))
    generation = Generation(str(root), "documents", "d" * 20)
    entry = generation.create("train-00000.arrow", write_documents(tables))
    return generation, entry, pa.concat_tables([DOCUMENT_SCHEMA.empty_table(), *tables])


@pytest.mark.parametrize("by_ranges", [False, True])
@pytest.mark.parametrize(
    ("batches", "megabytes", "blocks"),
    [(0, 0, 1), (1, 500, 1), (7, 1, 1), (7, 95, 1), (7, 97, 2), (7, 192, 3), (7, 6_400, 7)],
)
def test_blocks_hold_every_document_once_in_order(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    batches: int,
    megabytes: int,
    blocks: int,
    by_ranges: bool,
) -> None:
    if by_ranges:
        monkeypatch.setattr(module, "_WHOLE_BYTES", 0)
        monkeypatch.setattr(module, "_RANGE_BYTES", 1_000)
    generation, entry, whole = partition(tmp_path, batches)
    found = list(document_blocks(generation, entry, megabytes * 1_000_000))
    assert len(found) == blocks
    assert all(table.num_rows for table in found) or batches == 0
    assert pa.concat_tables(found).equals(whole)
    # Blocks differ by a record batch at most.
    rows = [table.num_rows for table in found]
    assert max(rows) - min(rows) <= 20


@pytest.mark.parametrize("by_ranges", [False, True])
def test_a_changed_or_cut_file_gives_no_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_ranges: bool
) -> None:
    if by_ranges:
        monkeypatch.setattr(module, "_WHOLE_BYTES", 0)
    generation, entry, _ = partition(tmp_path, 4)
    path = tmp_path / generation.name(entry.name)
    data = path.read_bytes()
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    for damaged, message in (
        (bytes(changed), "SHA-256"),
        (data[:-1], f"{len(data) - 1} bytes where its manifest says {len(data)}"),
        (data + b"more", f"{len(data) + 4} bytes where its manifest says {len(data)}"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(CorruptError, match=message):
            next(document_blocks(generation, entry, 100_000_000))
