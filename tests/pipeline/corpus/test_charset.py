"""Character sets, byte-order marks, and bytes that are no text."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from pipeline.corpus import ReadReport, content
from pipeline.errors import ConfigError, InputError
from tests.pipeline.corpus.reading import (
    WHOLE,
    failure,
    read_all,
    read_documents,
    read_reported,
    source_of,
)


def test_a_byte_order_mark_says_utf16(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("fine\n")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfeh\x00i\x00\n\x00")
    (tmp_path / "c.txt").write_text("fine too\n")
    assert read_all(source_of(tmp_path, "lines")) == [
        ("a.txt", 0, "fine"),
        ("b.txt", 2, "hi"),
        ("c.txt", 0, "fine too"),
    ]


def test_bytes_that_are_not_utf8_name_the_file_and_the_byte_offset(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("fine\n")
    (tmp_path / "b.txt").write_bytes(b"one\n\nh\xffi\n")
    message = failure(source_of(tmp_path))
    assert f"{tmp_path / 'b.txt'}: byte offset 6: not UTF-8 (byte 0xff)" in message
    assert "convert the file to UTF-8" in message


# U+0A0A and U+0D0A hold the byte of a line feed, U+2020 two spaces; an emoji is two units.
WIDE_TEXT = "a\u0a0ab\u0d0a \u2020\r\nc\U0001f600\n \t\r\n\nd\u2028\x85e\n\u2020\u0020\n\nlast\n"


@pytest.mark.parametrize("codec", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("kind", ["text", "lines", "jsonl", "file"])
@pytest.mark.parametrize("piece", [1, 3, 4, 1 << 20])
def test_every_utf_gives_the_documents_of_utf8_at_their_own_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, kind: str, piece: int
) -> None:
    text = WIDE_TEXT
    if kind == "jsonl":
        text = "".join(
            json.dumps({"text": one}, ensure_ascii=False) + "\n" for one in text.split("\n")
        )
    (tmp_path / "plain").write_text(text, encoding="utf-8", newline="")
    expected = [one.text for one in read_documents(source_of(tmp_path / "plain", kind))]
    data = ("\ufeff" + text).encode(codec)
    (tmp_path / "marked").write_bytes(data)
    (tmp_path / "bare").write_bytes(text.encode(codec))
    monkeypatch.setattr(content, "READ_BYTES", piece)
    marked = read_documents(source_of(tmp_path / "marked", kind), 1)
    bare = read_documents(source_of(tmp_path / "bare", kind, encoding=codec))
    assert [one.text for one in marked] == [one.text for one in bare] == expected
    assert len(expected) == {"text": 3, "lines": 5, "jsonl": 9, "file": 1}[kind]
    for one in marked if kind in ("text", "lines") else ():
        assert isinstance(one.offset, int)
        assert data[one.offset :].startswith(one.text.encode(codec))


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        ("cp1252", "caf\xe9 \u20ac"),
        ("koi8-r", "\u043f\u0440\u0438\u0432\u0435\u0442"),
        ("shift_jis", "\u65e5\u672c\u8a9e\u30bd"),
        ("gb18030", "\u4e2d\u6587\U0001f600"),
        ("big5", "\u8a31\u529f\u84cb"),
        ("iso2022_jp", "\u65e5\u672c"),
        ("cp037", "text of a mainframe"),
    ],
)
def test_other_encodings_are_read_by_name_in_splits_of_any_size(
    tmp_path: Path, codec: str, text: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(f"{text}\n\n{text} 2\nmore\n".encode(codec))
    source = source_of(path, encoding=codec)
    found = read_all(source)
    assert [one for _, _, one in found] == [text, f"{text} 2\nmore\n"]
    assert read_all(source, 1) == found


@pytest.mark.parametrize("named", ["utf-8", "UTF8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_the_mark_of_the_named_encoding_is_no_text(tmp_path: Path, named: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone".encode("utf-16-le" if "16" in named else "utf-8"))
    assert [text for _, _, text in read_all(source_of(path, encoding=named))] == ["one"]


def test_an_encoding_that_is_none_of_text_is_refused() -> None:
    for name in ("latin-99", "base64", "undefined", ""):
        with pytest.raises(ConfigError, match=r"documents\.sources\[s\]\.encoding"):
            source_of("x", encoding=name)


@pytest.mark.parametrize(
    ("policy", "expected"), [("replace", ["caf\ufffd", "\ufffd\ufffdx"]), ("skip", ["caf", "x"])]
)
@pytest.mark.parametrize("split_bytes", [1, WHOLE])
def test_a_policy_replaces_or_skips_what_is_no_text_and_counts_it(
    tmp_path: Path, policy: str, expected: list[str], split_bytes: int
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9\n\xff\xf0\x9f\x98x\n")
    report = ReadReport()
    source = source_of(path, "lines", undecodable=policy)
    assert [one.text for one in read_documents(source, split_bytes, report)] == expected
    done = "replaced" if policy == "replace" else "skipped"
    assert report.counts[f"undecodable_{done}"] == 3
    assert report.counts["undecodable_bytes"] == 5
    assert report.places == [
        f"{path}: byte offset 3: not UTF-8, {done}: e9",
        f"{path}: byte offset 5: not UTF-8, {done}: ff",
        f"{path}: byte offset 6: not UTF-8, {done}: f09f98",
    ]


def test_the_first_twenty_places_are_named_and_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff" * 100_000)
    found, report = read_reported(source_of(path, undecodable="replace"))
    assert found == ["\ufffd" * 100_000]
    assert report.counts["undecodable_replaced"] == 100_000
    assert len(report.places) == 20 and report.places[19].startswith(f"{path}: byte offset 19:")
    assert ReadReport(**pickle.loads(pickle.dumps(report)).as_dict()) == report
    assert json.loads(json.dumps(report.as_dict()))["places"] == report.places


def test_a_unit_cut_in_half_at_the_end_of_utf16_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone".encode("utf-16-le") + b"x")
    assert f"{path}: byte offset 8: not UTF-16-LE (byte 0x78)" in failure(source_of(path))
    assert read_reported(source_of(path, undecodable="skip"))[0] == ["one"]


@pytest.mark.parametrize("split_bytes", [1, 4, WHOLE])
def test_the_offset_of_a_bad_byte_is_that_in_the_file(tmp_path: Path, split_bytes: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\n\nmore\n\ncaf\xe9 au lait\n")
    with pytest.raises(InputError, match=r"byte offset 15: not UTF-8 \(byte 0xe9\)"):
        read_all(source_of(path), split_bytes)


UNMARKED = ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]


@pytest.mark.parametrize("encoding", UNMARKED)
@pytest.mark.parametrize("kind", ["text", "lines", "file", "jsonl", "mediawiki"])
@pytest.mark.parametrize("text", ["First document.\n\nSecond.", "Първи документ е тук.\n"])
def test_a_wide_encoding_without_a_mark_is_named_not_read_with_nuls(
    tmp_path: Path, encoding: str, kind: str, text: str
) -> None:
    path = tmp_path / "a"
    if kind == "jsonl":
        text = '{"text": "x"}\n'
    if kind == "mediawiki":
        text = "<mediawiki><page><ns>0</ns><text>x</text></page></mediawiki>"
    path.write_bytes(text.encode(encoding))
    message = failure(source_of(path, kind))
    assert f"{path}: byte offset 0: seems to be {encoding.upper()} without a byte-order" in message
    assert f'documents.sources[s].encoding to "{encoding}"' in message
    assert read_all(source_of(path, kind, encoding=encoding))


@pytest.mark.parametrize(
    "data", [b"a\0b", b"text\0 of\0\0 one \0 document", b"\0\0\0\0a", b"one\n \0 \nof two\0"]
)
def test_text_with_stray_nul_bytes_is_no_wide_encoding(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    assert read_all(source_of(tmp_path / "a", "file")) == [("a", 0, data.decode())]


@pytest.mark.parametrize(
    "encoding", ["idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape", "utf-7"]
)
def test_a_codec_that_stores_no_text_is_no_encoding(encoding: str) -> None:
    with pytest.raises(ConfigError, match=rf'encoding = "?{encoding}"?: name an encoding'):
        source_of("a", encoding=encoding)
