"""Splits: cut at the starts of documents, and of no influence on what is read."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.corpus import (
    InputFile,
    ReadReport,
    Split,
    list_files,
    plan_splits,
    read_split,
)
from pipeline.corpus import content as content_module
from pipeline.corpus import splits as splits_module
from pipeline.source_config import SourceConfig
from tests.pipeline.corpus.reading import BOM, WHOLE, LineFormat, read_all, source_of


def planned(source: SourceConfig, split_bytes: int) -> tuple[list[InputFile], list[Split]]:
    files = list_files(source, 0)
    return files, plan_splits(source, files, split_bytes)


def test_small_files_share_a_split_and_large_ones_are_cut(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"small-{number}").write_bytes(b"x" * 39 + b"\n")
    (tmp_path / "z-large").write_bytes(b"".join(b"%d\n\n" % number for number in range(200)))
    source = source_of(tmp_path)
    files, splits = planned(source, 100)
    assert [split.number for split in splits] == list(range(len(splits)))
    assert [len(split.ranges) for split in splits[:2]] == [2, 2]
    assert sum(split.bytes for split in splits) == sum(file.bytes for file in files)
    assert max(split.bytes for split in splits) <= 110


def test_a_split_without_a_boundary_is_the_whole_rest(tmp_path: Path) -> None:
    path = tmp_path / "one_line.txt"
    path.write_bytes(b"word " * 1000)
    _, splits = planned(source_of(path), 10)
    assert [split.bytes for split in splits] == [5000]


PIECES = {
    "text": [b"a", "é".encode(), b"\n", b"\n\n", b" \n", b"\r\n", b"\r", b" ", b"\t"],
    "lines": [b"a", b"bc", b"\n", b"\n\n", b"\r\n", b" ", "\u2028".encode()],
    "jsonl": [b'{"text": "a"}\n', b'{"text": "b\\n\\nc"}\r\n', b"\n", b" \r\n", b'{"text":""}\n'],
}


@pytest.mark.parametrize("kind", ["text", "lines", "jsonl"])
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_splits_of_any_size_give_the_documents_of_the_undivided_file(
    kind: LineFormat, data: st.DataObject
) -> None:
    some = st.lists(st.sampled_from(PIECES[kind]), min_size=6, max_size=30)
    pieces: Sequence[bytes] = data.draw(some)
    content = data.draw(st.sampled_from([b"", BOM])) + b"".join(pieces)
    # Small windows put every pattern across a window's end.
    scan_bytes = data.draw(st.sampled_from([1, 2, 3, 7, 1 << 20]))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits_module, "_SCAN_BYTES", scan_bytes)
        patch.setattr(content_module, "READ_BYTES", scan_bytes)
        path = Path(folder, "corpus")
        path.write_bytes(content)
        source = source_of(path, kind)
        files = list_files(source, 0)
        (whole,) = plan_splits(source, files, WHOLE)
        expected = list(read_split(source, whole, ReadReport()))
        others = data.draw(st.lists(st.integers(12, len(content) + 12), max_size=6))
        for split_bytes in (*range(1, 12), *others):
            splits = plan_splits(source, files, split_bytes)
            assert [
                one for split in splits for one in read_split(source, split, ReadReport())
            ] == expected


def test_a_run_of_blank_lines_across_a_window_is_one_boundary(tmp_path: Path) -> None:
    # The first window begins a byte before the first possible cut, and ends within the run, in
    # the middle of a line of spaces.
    split_bytes = 100
    until = split_bytes - 1 + splits_module._SCAN_BYTES
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * (until - 5) + b"\n \n  " + b"\nsecond\n\nthird\n")
    source = source_of(path)
    documents = read_all(source, split_bytes)
    assert documents == read_all(source)
    assert [offset for _, offset, _ in documents] == [0, until + 1, until + 9]
