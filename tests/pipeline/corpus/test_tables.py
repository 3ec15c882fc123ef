"""Parquet and Arrow: one document a row."""

from __future__ import annotations

import gzip
import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.corpus import ReadReport, list_files, plan_splits, read_split
from pipeline.errors import InputError
from tests.pipeline.corpus.reading import failure, read_all, read_reported, source_of

ROWS = 1000
TABLE = pa.table(
    {
        "number": pa.array(range(ROWS), pa.int64()),
        "text": [f"document {number} é" for number in range(ROWS)],
        "meta": [{"body": f"nested {number}", "id": f"i{number}"} for number in range(ROWS)],
    }
)
EXPECTED = [("a", number, f"document {number} é") for number in range(ROWS)]


def write(path: Path, kind: str, table: pa.Table = TABLE) -> None:
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=90)
        return
    make = pa.ipc.new_file if kind == "arrow_file" else pa.ipc.new_stream
    with make(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=90)


KINDS = ["parquet", "arrow_file", "arrow_stream"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", [True, False])
def test_rows_are_documents_at_their_row_numbers(tmp_path: Path, kind: str, named: bool) -> None:
    write(tmp_path / "a", kind)
    # Without a format the magic bytes say what it is.
    source = source_of(tmp_path / "a", kind.split("_")[0] if named else "auto")
    assert read_all(source) == EXPECTED


@pytest.mark.parametrize("kind", KINDS)
def test_a_compressed_table_is_read_too(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "plain", kind)
    (tmp_path / "a.gz").write_bytes(gzip.compress((tmp_path / "plain").read_bytes()))
    assert read_all(source_of(tmp_path / "a.gz", kind.split("_")[0]), 1) == EXPECTED


@pytest.mark.parametrize("kind", KINDS)
def test_dots_lead_to_a_field_of_a_struct(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "a", kind)
    fields = {"text_field": "meta.body", "id_field": "meta.id"}
    found = read_all(source_of(tmp_path / "a", kind.split("_")[0], **fields))
    assert found == [("a", f"i{number}", f"nested {number}") for number in range(ROWS)]
    numbered = source_of(tmp_path / "a", kind.split("_")[0], id_field="number")
    assert [key for _, key, _ in read_all(numbered)] == [str(number) for number in range(ROWS)]


@pytest.mark.parametrize("split_bytes", [1, 3_000, 10_000, 1 << 40])
def test_a_large_parquet_file_is_cut_between_row_groups(tmp_path: Path, split_bytes: int) -> None:
    write(tmp_path / "a", "parquet")
    source = source_of(tmp_path / "a", "parquet")
    files = list_files(source, 0)
    splits = plan_splits(source, files, split_bytes)
    assert len(splits) == {1: 12, 1 << 40: 1}.get(split_bytes, len(splits))
    assert sum(split.bytes for split in splits) == files[0].bytes
    found = [one for split in splits for one in read_split(source, split, ReadReport())]
    assert [(one.path, one.offset, one.text) for one in found] == EXPECTED


@pytest.mark.parametrize("kind", KINDS)
def test_null_cells_follow_the_policy_for_records(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    write(path, kind, pa.table({"text": ["x", None, "y"]}))
    kind = kind.split("_")[0]
    assert f'{path}: row 1: column "text" is null' in failure(source_of(path, kind))
    found, report = read_reported(source_of(path, kind, malformed="skip"))
    assert found == ["x", "y"]
    assert report.counts["malformed_skipped"] == 1
    # A null struct has no field.
    write(path, "parquet", pa.table({"m": pa.array([{"t": "x"}, None, {"t": None}])}))
    source = source_of(path, "parquet", text_field="m.t", malformed="skip")
    assert read_reported(source)[0] == ["x"]


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_every_type_of_string_is_text(tmp_path: Path, kind: Any) -> None:
    write(tmp_path / "a", "arrow_file", pa.table({"text": pa.array(["x", "é"]).cast(kind)}))
    assert [text for _, _, text in read_all(source_of(tmp_path / "a", "arrow"))] == ["x", "é"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"text_field": "body"}, 'column "body" is not there (columns: number, text, meta); set'),
        ({"text_field": "meta.x"}, 'column "meta.x" is not there'),
        ({"text_field": "number"}, 'column "number" is int64, no text'),
        ({"id_field": "meta"}, 'column "meta" is struct<'),
    ],
)
def test_a_column_that_is_missing_or_no_text_is_named(
    tmp_path: Path, kind: str, fields: dict[str, str], reason: str
) -> None:
    write(tmp_path / "a", kind)
    message = failure(source_of(tmp_path / "a", kind.split("_")[0], **fields))
    assert f"{tmp_path / 'a'}: {reason}" in message
    assert f"documents.sources[s].{next(iter(fields))}" in message


def test_bytes_in_a_string_column_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"]).buffers())
    write(tmp_path / "a", "arrow_file", pa.table({"text": bad}))
    message = failure(source_of(tmp_path / "a", "arrow"))
    assert f"{tmp_path / 'a'}: row 0: byte offset 3 of the text: not UTF-8" in message
    source = source_of(tmp_path / "a", "arrow", undecodable="replace")
    assert read_reported(source)[0] == ["caf\ufffd"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_table_is_named(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "a", kind)
    data = (tmp_path / "a").read_bytes()
    name = {"parquet": "Parquet"}.get(kind, "Arrow")
    for damaged in (data[: len(data) // 2], data[:20], b"no table at all"):
        (tmp_path / "a").write_bytes(damaged)
        message = failure(source_of(tmp_path / "a", kind.split("_")[0]))
        place = re.escape(str(tmp_path / "a")) + r"(: byte offset \d+)?"
        assert re.match(f"{place}: cannot read it as {name}", message)


def test_a_table_cut_short_after_planning_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a", "parquet")
    source = source_of(tmp_path / "a", "parquet")
    (split,) = plan_splits(source, list_files(source, 0), 1 << 40)
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-100])
    with pytest.raises(InputError, match="it was cut short since the job was planned"):
        list(read_split(source, split, ReadReport()))
    (tmp_path / "a").unlink()
    with pytest.raises(InputError, match="cannot read it: No such file or directory; restore it"):
        list(read_split(source, split, ReadReport()))


def stream(texts: list[str], name: str = "text", end: bool = True) -> bytes:
    table = pa.table({name: texts})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for text in texts:
            writer.write_table(pa.table({name: [text]}))
        kept = sink.tell()
    return sink.getvalue() if end else sink.getvalue()[:kept]


def test_streams_back_to_back_are_all_read(tmp_path: Path) -> None:
    streams = [stream(["a", "b"]), stream([]), stream(["c"]), stream(["d", "e"])]
    expected = [("a", row, text) for row, text in enumerate("abcde")]
    (tmp_path / "a").write_bytes(b"".join(streams))
    assert read_all(source_of(tmp_path / "a", "arrow")) == expected
    (tmp_path / "a").unlink()
    (tmp_path / "a.gz").write_bytes(b"".join(map(gzip.compress, streams)))
    assert read_all(source_of(tmp_path / "a.gz", "auto")) == expected
    # Each has a schema of its own, which is checked.
    (tmp_path / "a.gz").write_bytes(gzip.compress(streams[0]) + gzip.compress(stream(["c"], "t")))
    assert 'a.gz: column "text" is not there' in failure(source_of(tmp_path / "a.gz", "arrow"))


def test_a_stream_that_is_cut_between_batches_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    whole, cut = stream(["one"]), stream(["two", "three"], end=False)
    path.write_bytes(whole + cut)
    message = failure(source_of(path, "arrow"))
    assert f"{path}: byte offset {len(whole + cut)}: cannot read it as Arrow: " in message
    assert f"begins at byte {len(whole)} is no whole one: it ends without an end-of" in message
    path.write_bytes(cut + whole)
    assert f"{path}: byte offset" in failure(source_of(path, "arrow"))


@pytest.mark.parametrize("more", [b"rubbish", bytes(8), b"\n", b"ARROW1\0\0"])
def test_bytes_behind_a_stream_that_are_none_are_named(tmp_path: Path, more: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(stream(["one"]) + more)
    assert f"begins at byte {len(stream(['one']))} is no whole one" in failure(
        source_of(path, "arrow")
    )


@pytest.mark.parametrize("indexed", [False, True])
def test_bytes_around_a_parquet_file_are_named(tmp_path: Path, indexed: bool) -> None:
    path = tmp_path / "a"

    def one(texts: list[str]) -> bytes:
        table = pa.table({"text": pa.array(texts, pa.string())})
        pq.write_table(table, path, write_page_index=indexed)
        return path.read_bytes()

    few, many = one(["x"]), one([f"document {number}" for number in range(5000)])
    assert len(read_all(source_of(path, "parquet"))) == 5000
    for first, second in ((few, many), (many, few), (few, few)):
        path.write_bytes(first + second)
        message = failure(source_of(path, "parquet"))
        assert f"{path}: byte offset {len(first)}: another Parquet file begins here" in message
    path.write_bytes(b"rubbish" + few)
    assert f"{path}: byte offset 0: cannot read it as Parquet" in failure(
        source_of(path, "parquet")
    )
    path.write_bytes(few + b"rubbish")
    assert f"{path}: cannot read it as Parquet" in failure(source_of(path, "parquet"))
    path.write_bytes(one([]))
    assert read_all(source_of(path, "parquet")) == []


@pytest.mark.parametrize("kind", KINDS)
def test_dictionaries_of_whole_numbers_identify_documents(tmp_path: Path, kind: str) -> None:
    numbers = pa.array([7, 8, 9], pa.int64()).dictionary_encode()
    write(tmp_path / "a", kind, pa.table({"text": ["x", "y", "z"], "id": numbers}))
    found = read_all(source_of(tmp_path / "a", kind.split("_")[0], id_field="id"))
    assert [key for _, key, _ in found] == ["7", "8", "9"]
