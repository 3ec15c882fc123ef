"""Reading raw text: what a line, a document and a file of a source are, and where each is."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import corpus
from pipeline.config import SourceConfig
from pipeline.corpus import InputFile, Split, list_files, plan_splits, read_split
from pipeline.documents import clean_text
from pipeline.errors import InputError
from pipeline.sentences import split_sentences

Format = Literal["text", "lines", "jsonl"]
WHOLE = 1 << 40
BOM = b"\xef\xbb\xbf"


def source_of(path: Path, kind: Format = "text", **fields: Any) -> SourceConfig:
    return SourceConfig(name="s", format=kind, path=str(path), **fields)


def read_all(source: SourceConfig, split_bytes: int = WHOLE) -> list[tuple[str, int, str]]:
    """(path, offset, text) of every document of a source."""
    splits = plan_splits(source, list_files(source, 0), split_bytes)
    documents = [one for split in splits for one in read_split(source, split)]
    assert not any(one.dropped for one in documents)
    return [(one.path, one.offset, one.text) for one in documents]


def texts(data: bytes, tmp_path: Path, kind: Format = "text") -> list[str]:
    """Cleaned texts of the documents of one file."""
    path = tmp_path / "corpus.txt"
    path.write_bytes(data)
    return [clean_text(text).strip() for _, _, text in read_all(source_of(path, kind))]


def sentences(data: bytes, tmp_path: Path, kind: Format = "text") -> list[list[str]]:
    found: list[list[str]] = split_sentences(texts(data, tmp_path, kind), "en").to_pylist()
    return found


def failure(source: SourceConfig) -> str:
    with pytest.raises(InputError) as caught:
        read_all(source)
    return str(caught.value)


# What ends a line and a document


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    data = "alpha\u2029beta\ngamma\u2028delta\x85epsilon\x0bzeta\x0ceta\n".encode()
    assert texts(data, tmp_path, "lines") == ["alpha beta", "gamma delta epsilon zeta eta"]
    assert sentences(data, tmp_path) == [["alpha beta", "gamma delta epsilon zeta eta"]]


def test_a_blank_line_ends_a_document(tmp_path: Path) -> None:
    assert sentences(b"s1.\ns2.\n\ns3.\ns4.\n", tmp_path) == [["s1.", "s2."], ["s3.", "s4."]]


def test_crlf_blank_lines_end_documents_like_lf_ones(tmp_path: Path) -> None:
    data = b"one\ntwo\n\nthree\n\n\n\nfour\n"
    expected = [["one", "two"], ["three"], ["four"]]
    assert sentences(data, tmp_path) == expected
    assert sentences(data.replace(b"\n", b"\r\n"), tmp_path) == expected


def test_a_lone_carriage_return_is_a_space(tmp_path: Path) -> None:
    assert texts(b"one\rtwo\r\nthree\n\nfour\n", tmp_path) == ["one two\nthree", "four"]
    assert texts(b"a\r\rb\n\rc\n", tmp_path) == ["a b\n c"]
    assert texts(b"one\rtwo\r\nthree\n\nfour\n", tmp_path, "lines") == ["one two", "three", "four"]


@pytest.mark.parametrize("blank", [b" ", b"\t \t", b"\r", b" \r", b"\x0b\x0c"])
def test_a_line_of_white_space_is_blank(tmp_path: Path, blank: bytes) -> None:
    assert texts(b"a\n" + blank + b"\nb\n", tmp_path) == ["a", "b"]


@pytest.mark.parametrize("line", [b"\x00", b" \x00 "])
def test_a_line_that_cleaning_empties_is_no_document_break(tmp_path: Path, line: bytes) -> None:
    data = b"hello\x00world\n" + line + b"\nnext\n"
    assert sentences(data, tmp_path) == [["helloworld", "next"]]


@pytest.mark.parametrize(
    "data", [b"a\n\nb", b"a\n\nb\n", b"\n\n\na\n\n\nb\n\n\n", b" \n\na\n \nb\n "]
)
def test_blank_lines_at_either_end_and_a_missing_last_line_feed_change_nothing(
    tmp_path: Path, data: bytes
) -> None:
    assert texts(data, tmp_path) == ["a", "b"]


def test_an_empty_line_never_ends_the_reading(tmp_path: Path) -> None:
    assert texts(b"a b.\n\nc d.\n\n\ne f.\n", tmp_path, "lines") == ["a b.", "c d.", "e f."]


def test_a_paragraph_a_line_is_cut_into_sentences(tmp_path: Path) -> None:
    data = b"First sentence. Second sentence.\nThird one.\n\nTitle\nBody. More.\n"
    assert sentences(data, tmp_path) == [
        ["First sentence.", "Second sentence.", "Third one."],
        ["Title", "Body.", "More."],
    ]


@pytest.mark.parametrize("kind", ["text", "lines", "jsonl"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, kind: Format) -> None:
    text = b'{"text": "first"}\n' if kind == "jsonl" else b"first\n"
    path = tmp_path / "corpus"
    path.write_bytes(BOM + text)
    assert read_all(source_of(path, kind)) == [("corpus", 3, "first" + "\n" * (kind == "text"))]


def test_offsets_are_bytes_of_the_uncompressed_file(tmp_path: Path) -> None:
    data = "é\n\nzwei\n\n\n三\n".encode()
    (tmp_path / "plain.txt").write_bytes(data)
    (tmp_path / "packed.txt.gz").write_bytes(gzip.compress(data))
    found = read_all(source_of(tmp_path))
    expected = [(0, "é"), (4, "zwei"), (11, "三\n")]
    for name in ("packed.txt", "plain.txt"):
        assert [(offset, text) for path, offset, text in found if path == name] == expected
    for offset, text in expected:
        assert data[offset:].startswith(text.encode())


# JSON Lines


def jsonl(path: Path, *records: Any) -> SourceConfig:
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return source_of(path, "jsonl")


def test_a_json_line_is_a_document_whatever_its_text_holds(tmp_path: Path) -> None:
    source = jsonl(
        tmp_path / "a.jsonl", {"text": "one\n\ntwo", "id": 1}, {"text": ""}, {"text": "x"}
    )
    assert [text for _, _, text in read_all(source)] == ["one\n\ntwo", "", "x"]


def test_the_text_field_is_configurable(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", {"body": "one", "text": 3})
    source = source_of(tmp_path / "a.jsonl", "jsonl", text_field="body")
    assert [text for _, _, text in read_all(source)] == ["one"]


def test_an_escaped_lone_surrogate_has_no_text_but_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a\\ud800b \\ud83d\\ude00"}\n')
    ((_, _, text),) = read_all(source_of(path, "jsonl"))
    assert clean_text(text) == "ab \U0001f600"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not a JSON object"),
        ("not json", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ("[1]", 'no string field "text"; set documents.sources[s].text_field'),
        ('{"body": "x"}', 'no string field "text"; set documents.sources[s].text_field'),
        ('{"text": null}', 'no string field "text"'),
    ],
    ids=["cut", "words", "deep", "list", "other_field", "null"],
)
def test_a_bad_json_line_names_file_and_byte_offset(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "é"}}\n{line}\n', encoding="utf-8")
    message = failure(source_of(path, "jsonl"))
    assert f"{path}: byte offset 15: {reason}" in message


# Bytes that are no text


def test_utf16_names_the_file_and_the_byte_offset(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("fine\n")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfeh\x00i\x00\n\x00")
    (tmp_path / "c.txt").write_text("fine too\n")
    message = failure(source_of(tmp_path))
    assert f"{tmp_path / 'b.txt'}: byte offset 0: not UTF-8 (byte 0xff)" in message
    assert "convert the file to UTF-8" in message


@pytest.mark.parametrize("split_bytes", [1, 4, WHOLE])
def test_the_offset_of_a_bad_byte_is_that_in_the_file(tmp_path: Path, split_bytes: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\n\nmore\n\ncaf\xe9 au lait\n")
    with pytest.raises(InputError, match=r"byte offset 15: not UTF-8 \(byte 0xe9\)"):
        read_all(source_of(path), split_bytes)


# Compression


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".zst", zstd)],
)
def test_compressed_files_read_like_plain_ones(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    plain = jsonl(tmp_path / "articles.jsonl", *({"text": f"document {n}"} for n in range(50)))
    data = (tmp_path / "articles.jsonl").read_bytes()
    folder = tmp_path / "packed"
    folder.mkdir()
    # Two streams in one file are one text (as pigz and bzip2 -c a b write them).
    half = data.index(b"\n", len(data) // 2) + 1
    path = folder / f"articles.jsonl{suffix}"
    path.write_bytes(compress(data[:half]) + compress(data[half:]))
    assert read_all(source_of(path, "jsonl")) == read_all(plain)
    # A compressed file cannot be entered in the middle: it is one range however small splits are.
    assert read_all(source_of(path, "jsonl"), 1) == read_all(plain)


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        (".gz", gzip.compress(b"text\n" * 1000)[:-12]),
        (".gz", b"this is no gzip\n"),
        (".bz2", b"this is no bzip2\n"),
        (".zst", zstd(b"text\n" * 1000)[:-3]),
    ],
)
def test_a_damaged_archive_is_named(tmp_path: Path, suffix: str, data: bytes) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(data)
    message = failure(source_of(path))
    assert f"{path}: cannot read it as {corpus.COMPRESSION_SUFFIXES[suffix]}" in message
    assert "repair or remove the file" in message


def test_empty_files_among_others_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n{"text": "y"}\n'))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "c.jsonl").write_bytes(b"")
    (tmp_path / "d.jsonl.gz").write_bytes(b"")
    source = source_of(tmp_path, "jsonl")
    assert len(list_files(source, 0)) == 4
    assert read_all(source) == [("a.jsonl", 0, "x"), ("a.jsonl", 14, "y")]


# Which files are read


def names_of(source: SourceConfig) -> list[str]:
    return [file.path for file in list_files(source, 0)]


def write_files(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}\n")


def test_every_file_below_a_directory_is_read_whatever_its_name(tmp_path: Path) -> None:
    names = [
        "contest_report.txt",
        "deep/er/README",
        "latest-news.txt",
        "my-validation-notes.txt",
        "test/part-0",
        "training-day.txt",
        "validation/dev.json",
    ]
    write_files(tmp_path, *names)
    assert names_of(source_of(tmp_path)) == names


def test_hidden_files_and_folders_below_a_directory_are_left_out(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt", ".hidden.txt", ".git/objects", "b/.cache/x", "b/c.txt")
    assert names_of(source_of(tmp_path)) == ["a.txt", "b/c.txt"]
    # One that is named is read, and so is a directory whose own name is hidden.
    assert names_of(source_of(tmp_path / ".hidden.txt")) == [".hidden.txt"]
    assert names_of(source_of(tmp_path / ".git")) == ["objects"]
    assert names_of(source_of(tmp_path / "b/.cache/*")) == ["x"]


def test_a_glob_names_files_below_its_first_pattern(tmp_path: Path) -> None:
    write_files(tmp_path, "x/1/a.txt", "x/2/b.txt", "x/2/c.md", "y/1/d.txt")
    assert names_of(source_of(tmp_path / "x/*/*.txt")) == ["1/a.txt", "2/b.txt"]
    assert names_of(source_of(tmp_path / "**/*.txt")) == ["x/1/a.txt", "x/2/b.txt", "y/1/d.txt"]
    assert names_of(source_of(tmp_path / "x/2/[ab].*")) == ["b.txt"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    write_files(tmp_path, "notes[1].txt", "notes1.txt")
    assert names_of(source_of(tmp_path / "notes[1].txt")) == ["notes[1].txt"]


def test_a_path_relative_to_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, "corpus/a.txt")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names_of(source_of(Path("~/corpus"))) == ["a.txt"]


@pytest.mark.parametrize("name", ["absent.txt", "absent/folder", "absent/*.txt"])
def test_a_path_that_does_not_exist_is_named(tmp_path: Path, name: str) -> None:
    message = failure(source_of(tmp_path / name))
    assert f"documents.sources[s].path = {tmp_path / name}: no such file or directory" in message
    assert "correct the path" in message


def test_a_directory_without_files_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, ".hidden")
    assert f"documents.sources[s].path = {tmp_path}: no files" in failure(source_of(tmp_path))


def test_an_empty_corpus_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "b.txt").write_bytes(b"")
    message = failure(source_of(tmp_path))
    assert f"documents.sources[s].path = {tmp_path}: 2 files, all empty" in message


def test_two_files_that_differ_in_compression_only_are_refused(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt", "a.txt.gz")
    message = failure(source_of(tmp_path))
    assert "same name as" in message and "rename or remove one" in message


def test_links_are_followed(tmp_path: Path) -> None:
    write_files(tmp_path, "corpus/a.txt", "elsewhere/b.txt", "c.txt")
    (tmp_path / "corpus/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus/c.txt").symlink_to(tmp_path / "c.txt")
    assert names_of(source_of(tmp_path / "corpus")) == ["a.txt", "c.txt", "more/b.txt"]


def test_a_link_into_a_loop_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt", "deep/b.txt")
    (tmp_path / "deep/up").symlink_to(tmp_path)
    message = failure(source_of(tmp_path))
    assert f"{tmp_path}/deep/up: leads to {tmp_path}" in message
    assert "remove the link" in message


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    assert f"{tmp_path}/gone.txt: cannot read: No such file" in failure(source_of(tmp_path))


def test_a_pipe_is_named_and_not_waited_for(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "pipe")
    assert f"{tmp_path}/pipe: not a regular file" in failure(source_of(tmp_path))


def test_a_file_name_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_text("text\n")
    message = failure(source_of(tmp_path))
    assert "caf\\udce9.txt: the file's name is not UTF-8" in message


def test_what_may_not_be_read_is_named() -> None:
    code = """
import os, sys
from pipeline.config import SourceConfig
from pipeline.corpus import list_files
from pipeline.errors import InputError
if os.getuid() == 0:
    os.setuid(65534)
for name in ("file", "folder"):
    try:
        list_files(SourceConfig(name="s", format="text", path=f"{sys.argv[1]}/{name}"), 0)
    except InputError as error:
        print(error)
"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_files(folder, "file/secret.txt", "folder/secret/a.txt", "folder/b.txt")
        (folder / "file/secret.txt").chmod(0)
        (folder / "folder/secret").chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", code, name],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=60,
        )
        (folder / "folder/secret").chmod(0o700)
    assert done.returncode == 0, done.stderr
    file, directory = done.stdout.splitlines()
    assert f"{name}/file/secret.txt: cannot read: Permission denied; give this user" in file
    assert f"{name}/folder/secret: cannot list: Permission denied; give this user" in directory


def test_a_file_cut_short_after_planning_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\ntwo\n")
    source = source_of(path)
    (split,) = plan_splits(source, list_files(source, 0), WHOLE)
    path.write_bytes(b"one\n")
    with pytest.raises(InputError, match=r"a\.txt: ends before byte 9: it was cut short"):
        list(read_split(source, split))


def test_a_files_checksum_and_size_are_those_of_its_bytes(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt")
    (file,) = list_files(source_of(tmp_path), 0)
    data = (tmp_path / "a.txt").read_bytes()
    assert file.bytes == len(data)
    assert file.sha256 == hashlib.sha256(data).hexdigest()


def test_a_byte_limit_takes_files_in_an_order_of_the_seed(tmp_path: Path) -> None:
    write_files(tmp_path, *(f"{number:02d}.txt" for number in range(30)))
    plain = names_of(source_of(tmp_path))
    assert plain == sorted(plain)
    limited = source_of(tmp_path, limit_bytes=10)
    orders = [[file.path for file in list_files(limited, seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != plain
    assert all(sorted(order) == plain for order in orders)


# Splits


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
    kind: Format, data: st.DataObject
) -> None:
    some = st.lists(st.sampled_from(PIECES[kind]), min_size=6, max_size=30)
    pieces: Sequence[bytes] = data.draw(some)
    content = data.draw(st.sampled_from([b"", BOM])) + b"".join(pieces)
    # Small windows put every pattern across a window's end.
    scan_bytes = data.draw(st.sampled_from([1, 2, 3, 7, 1 << 20]))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_SCAN_BYTES", scan_bytes)
        path = Path(folder, "corpus")
        path.write_bytes(content)
        source = source_of(path, kind)
        files = list_files(source, 0)
        (whole,) = plan_splits(source, files, WHOLE)
        expected = list(read_split(source, whole))
        others = data.draw(st.lists(st.integers(12, len(content) + 12), max_size=6))
        for split_bytes in (*range(1, 12), *others):
            splits = plan_splits(source, files, split_bytes)
            assert [one for split in splits for one in read_split(source, split)] == expected


def test_a_run_of_blank_lines_across_a_window_is_one_boundary(tmp_path: Path) -> None:
    # The first window begins a byte before the first possible cut, and ends within the run, in
    # the middle of a line of spaces.
    split_bytes = 100
    until = split_bytes - 1 + corpus._SCAN_BYTES
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * (until - 5) + b"\n \n  " + b"\nsecond\n\nthird\n")
    source = source_of(path)
    documents = read_all(source, split_bytes)
    assert documents == read_all(source)
    assert [offset for _, offset, _ in documents] == [0, until + 1, until + 9]
