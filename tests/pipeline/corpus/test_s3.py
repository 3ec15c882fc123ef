"""S3 objects as a corpus, on a real S3 server."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.corpus import ReadReport, list_files, plan_splits, read_split
from pipeline.errors import InputError
from tests.pipeline.corpus.reading import (
    failure,
    names_of,
    read_all,
    read_documents,
    source_of,
)
from tests.s3_server import BUCKET

# boto3's own sockets are left to the collector.
pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("ignore::ResourceWarning")]


class Folder:
    """A prefix of the bucket for one test."""

    def __init__(self, name: str) -> None:
        self.client = boto3.session.Session().client("s3")
        self.prefix = name
        self.uri = f"s3://{BUCKET}/{name}"

    def put(self, **objects: bytes) -> None:
        for name, data in objects.items():
            self.write(name.replace("__", "/").replace("_dot_", "."), data)

    def write(self, name: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}", Body=data)


@pytest.fixture(params=["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def folder(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Folder:
    for name, value in s3.items():
        monkeypatch.setenv(request.param if name == "AWS_ENDPOINT_URL_S3" else name, value)
    return Folder(request.node.name.split("[")[0] + request.param)


def test_objects_read_like_files(folder: Folder, tmp_path: Path) -> None:
    data = b"".join(b"document %d \xc3\xa9\nline two\n\n" % number for number in range(300_000))
    table = io.BytesIO()
    pq.write_table(pa.table({"text": [f"row {n}" for n in range(5000)]}), table, row_group_size=500)
    jsonl = b"".join(b'{"text": "%d"}\n' % number for number in range(1000))
    files = {
        "a.txt": data,
        "deep/b.txt.gz": gzip.compress(data[:1000]),
        "c.parquet": table.getvalue(),
        "d.jsonl": jsonl,
    }
    for name, content in files.items():
        folder.write(name, content)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    local = read_all(source_of(tmp_path, "auto"))
    assert len(local) > 306_000
    assert read_all(source_of(folder.uri, "auto")) == local
    # Cut by range, documents are the same.
    source = source_of(f"{folder.uri}/", "auto")
    splits = plan_splits(source, list_files(source, 0), 1 << 20)
    assert len(splits) > 5
    assert [(one.path, one.offset, one.text) for one in read_documents(source, 1 << 20)] == local


def test_an_object_a_prefix_and_a_glob(folder: Folder) -> None:
    names = ["x/1/a.txt", "x/2/b.txt", "x/2/c.md", "x/2/[d].txt", "y/1/a.txt", "xyz.txt"]
    for name in names:
        folder.write(name, b"text")
    folder.client.put_object(Bucket=BUCKET, Key=f"{folder.prefix}/x/marker/", Body=b"")
    assert names_of(source_of(f"{folder.uri}/xyz.txt")) == ["xyz.txt"]
    assert names_of(source_of(f"{folder.uri}/x")) == ["1/a.txt", "2/[d].txt", "2/b.txt", "2/c.md"]
    assert names_of(source_of(f"{folder.uri}/*/1/*.txt")) == ["x/1/a.txt", "y/1/a.txt"]
    assert names_of(source_of(f"{folder.uri}/**/a.txt")) == ["x/1/a.txt", "y/1/a.txt"]
    assert names_of(source_of(f"{folder.uri}/x/**")) == names_of(source_of(f"{folder.uri}/x"))
    assert names_of(source_of(f"{folder.uri}/x/2/[!c].*")) == ["b.txt"]
    assert names_of(source_of(f"{folder.uri}/x/?/b.txt")) == ["2/b.txt"]


def test_hidden_and_temporary_objects_are_left_out_and_counted(folder: Folder) -> None:
    for name in ("a.txt", "_SUCCESS", ".part.crc", "_temporary/0/b", "c.tmp"):
        folder.write(name, b"text")
    report = ReadReport()
    files = list_files(source_of(folder.uri), 0, report)
    assert [file.path for file in files] == ["a.txt"]
    assert report.counts == {"hidden_left_out": 1, "temporary_left_out": 3}
    assert f"{folder.uri}/_SUCCESS: temporary, left out" in report.places


def test_objects_are_identified_by_etag_and_size_without_reading(folder: Folder) -> None:
    folder.write("a.txt", b"text")
    (file,) = list_files(source_of(folder.uri), 0)
    answer = folder.client.head_object(Bucket=BUCKET, Key=f"{folder.prefix}/a.txt")
    assert (file.bytes, file.checksum) == (4, "etag:" + answer["ETag"].strip('"'))
    folder.write("a.txt", b"tex2")
    assert list_files(source_of(folder.uri), 0)[0].checksum != file.checksum


def test_a_list_names_objects(folder: Folder, tmp_path: Path) -> None:
    folder.write("a.txt.gz", gzip.compress(b"text"))
    (tmp_path / "b.txt").write_text("local")
    listed = tmp_path / "all.lst"
    listed.write_text(f"{folder.uri}/a.txt.gz\nb.txt\n")
    key = f"{BUCKET}/{folder.prefix}/a.txt"
    assert read_all(source_of(f"@{listed}")) == [("b.txt", 0, "local"), (key, 0, "text")]
    listed.write_text(f"{folder.uri}/absent\n")
    message = failure(source_of(f"@{listed}"))
    assert f"{listed}: line 1: {folder.uri}/absent: no such object" in message


@pytest.mark.parametrize("name", ["absent", "absent/*.txt"])
def test_what_is_not_there_is_named(folder: Folder, name: str) -> None:
    message = failure(source_of(f"{folder.uri}/{name}"))
    assert f"documents.sources[s].path = {folder.uri}/{name}: no such object" in message
    assert "s3://no-such-bucket/x: cannot list: " in failure(source_of("s3://no-such-bucket/x"))


def test_an_object_that_is_removed_or_cut_after_the_listing_is_named(folder: Folder) -> None:
    folder.write("a.txt", b"one\n\ntwo\n")
    source: Any = source_of(folder.uri)
    (split,) = plan_splits(source, list_files(source, 0), 1 << 40)
    folder.write("a.txt", b"one\n")
    with pytest.raises(InputError, match="ends at byte 4, before byte 9: it was cut short"):
        list(read_split(source, split, ReadReport()))
    folder.client.delete_object(Bucket=BUCKET, Key=f"{folder.prefix}/a.txt")
    with pytest.raises(InputError, match=r"a\.txt: cannot read it: .*restore it if it was removed"):
        list(read_split(source, split, ReadReport()))
    assert "AWS_ACCESS_KEY_ID" in os.environ


def test_an_object_rewritten_after_the_listing_is_named(folder: Folder) -> None:
    table = io.BytesIO()
    pq.write_table(pa.table({"text": ["x"] * 100}), table)
    for before, after in ((b"one\n", b"two\n"), (table.getvalue(), table.getvalue() * 2)):
        folder.write("a.txt", before)
        source: Any = source_of(folder.uri, "parquet" if len(before) > 9 else "text")
        (split,) = plan_splits(source, list_files(source, 0), 1 << 40)
        assert list(read_split(source, split, ReadReport()))
        folder.write("a.txt", after)
        with pytest.raises(InputError, match=r"a\.txt: changed since the job was planned"):
            list(read_split(source, split, ReadReport()))
