"""What ends a line and a document."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.corpus import content, streams
from tests.pipeline.corpus.reading import BOM, LineFormat, read_all, sentences, source_of, texts


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
    assert texts(b"a\r\rb\n\rc\n", tmp_path) == ["a b\nc"]
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
def test_a_byte_order_mark_is_no_text(tmp_path: Path, kind: LineFormat) -> None:
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


def test_a_document_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\n\r\n\r\ntwo\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(BOM + b"three"))
    (tmp_path / "c.txt").write_bytes(b" \n\n")
    assert read_all(source_of(tmp_path, "file"), 1) == [
        ("a.txt", 0, "one\r\n\r\n\r\ntwo\n"),
        ("b.txt", 0, "three"),
    ]


@pytest.mark.parametrize("kind", ["text", "lines"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b" \t\n"])
def test_two_million_blank_lines_are_no_documents(
    tmp_path: Path, kind: LineFormat, end: bytes
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"first\n" + end * 2_000_000 + b"last\n")
    expected = [(0, "first"), (6 + 2_000_000 * len(end), "last")]
    for split_bytes in (1 << 20, 1 << 40):
        found = read_all(source_of(path, kind), split_bytes)
        assert [(offset, text.strip()) for _, offset, text in found] == expected


def test_right_to_left_text_and_emoji_are_read_as_they_are(tmp_path: Path) -> None:
    text = "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \U0001f468\u200d\U0001f469"
    path = tmp_path / "a.txt"
    path.write_bytes(f"{text}\n\n{text}\u200f\n".encode())
    assert [one for _, _, one in read_all(source_of(path))] == [text, f"{text}\u200f\n"]


@pytest.mark.parametrize("kind", ["text", "lines", "jsonl"])
def test_a_line_longer_than_many_buffers_is_one_document(tmp_path: Path, kind: LineFormat) -> None:
    text = "word and more. " * 400_000
    path = tmp_path / "a.txt"
    path.write_text(f'{{"text": "{text}"}}\n' if kind == "jsonl" else f"{text}\n\nlast\n")
    found = [one for _, _, one in read_all(source_of(path, kind), 1 << 20)]
    assert found == ([text] if kind == "jsonl" else [text, "last\n" if kind == "text" else "last"])


def plain_documents(text: str) -> list[tuple[int, str]]:
    """The rule written plainly: lines that are not blank, together until a blank one."""
    found: list[tuple[int, str]] = []
    start, lines, place = 0, list[str](), 0
    *ended, rest = text.split("\n")
    for line in ended:
        if line.strip(" \t\r\f\v"):
            start = start if lines else place
            lines.append(line + "\n")
        elif lines:
            found.append((start, "".join(lines).removesuffix("\n")))
            lines = []
        place += len(line) + 1
    last = "".join(lines) + rest
    found.append((start if lines else place, last))
    return [(offset, one) for offset, one in found if one.strip(" \t\r\n\f\v")]


@pytest.mark.parametrize(("codec", "width"), [("utf-8", 1), ("utf-16-le", 2), ("utf-32-be", 4)])
@settings(max_examples=100, deadline=None)
@given(
    pieces=st.lists(st.sampled_from(["a", "b", "\n", "\n\n", " ", "\t", "\r", "\r\n", "\v"])),
    piece_bytes=st.sampled_from([1, 2, 3, 5, 1 << 20]),
    split_bytes=st.integers(1, 60),
)
def test_pieces_of_any_size_give_the_documents_of_the_plain_rule(
    codec: str, width: int, pieces: list[str], piece_bytes: int, split_bytes: int
) -> None:
    text = "".join(pieces) + "end"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "READ_BYTES", piece_bytes)
        patch.setattr(streams, "_PEEK_BYTES", 1)
        path = Path(folder, "a.txt")
        path.write_bytes(text.encode(codec))
        found = read_all(source_of(path, encoding=codec), split_bytes)
    assert [(offset, one) for _, offset, one in found] == [
        (place * width, one) for place, one in plain_documents(text)
    ]
