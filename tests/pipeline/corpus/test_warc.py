"""Web archives: text of conversion records, main text of responses."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.pipeline.corpus.reading import (
    failure,
    read_all,
    read_documents,
    read_reported,
    source_of,
)

SENTENCE = "This is a sentence of the article, long enough to be taken for running text. "
PAGE = f"""<html><head><title>T</title><meta charset="utf-8"></head><body>
<nav><a href="/">Home</a> <a href="/about">About us</a></nav>
<article><h1>Heading</h1><p>First. {SENTENCE * 3}</p><p>Caf&eacute; \xe9. {SENTENCE * 3}</p>
<table><tr><td>cell of a table</td></tr></table></article>
<footer>Copyright</footer></body></html>"""


def record(kind: str, block: bytes, content_type: str) -> bytes:
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def wet(*texts: str) -> bytes:
    records = [record("conversion", text.encode(), "text/plain") for text in texts]
    return record("warcinfo", b"software: test\r\n", "application/warc-fields") + b"".join(records)


def response(
    body: bytes, status: str = "200 OK", kind: str = "text/html; charset=utf-8", more: str = ""
) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}\r\n"
    return record("response", head.encode() + body, "application/http; msgtype=response")


@pytest.mark.parametrize("packed", [False, True])
def test_conversion_records_are_documents_at_their_byte(tmp_path: Path, packed: bool) -> None:
    texts = ["first\nline two\r\n\r\nand more", "zweite é", "", "WARC/1.0\r\nnot a record"]
    data = wet(*texts)
    path = tmp_path / ("a.warc.wet.gz" if packed else "a.warc.wet")
    path.write_bytes(gzip.compress(data) if packed else data)
    found = read_documents(source_of(path, "auto"))
    assert [one.text for one in found] == [text for text in texts if text]
    for one in found:
        assert isinstance(one.offset, int)
        assert one.path == "a.warc.wet"
        header, _, rest = data[one.offset :].partition(b"\r\n\r\n")
        assert header.startswith(b"WARC/1.") and b"WARC-Type: conversion" in header
        assert rest.startswith(one.text.encode())


def test_a_gzip_member_a_record_gives_the_same_keys(tmp_path: Path) -> None:
    (tmp_path / "a.wet").write_bytes(wet("one", "two"))
    plain = read_all(source_of(tmp_path / "a.wet", "wet"))
    parts = wet("one", "two").split(b"WARC/1.0\r\n")[1:]
    packed = b"".join(gzip.compress(b"WARC/1.0\r\n" + part) for part in parts)
    (tmp_path / "a.wet").unlink()
    (tmp_path / "a.wet.gz").write_bytes(packed)
    assert read_all(source_of(tmp_path / "a.wet.gz", "wet")) == plain


def test_the_main_text_of_html_pages_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(response(PAGE.encode()))
    ((_, offset, text),) = read_all(source_of(path, "auto"))
    assert offset == 0
    assert "First. This is a sentence" in text and "Café é. This is" in text
    assert not any(word in text for word in ("About us", "cell of a table", "Copyright", "<p>"))


def test_chunked_and_compressed_bodies_and_other_charsets_are_undone(tmp_path: Path) -> None:
    body = gzip.compress(PAGE.encode())
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    latin = PAGE.replace('<meta charset="utf-8">', "").encode("latin-1")
    path = tmp_path / "a.warc"
    path.write_bytes(
        response(chunked, more="Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n")
        + response(latin, kind='text/html; charset="ISO-8859-1"')
        + response(PAGE.encode(), kind="text/html")
        + response(PAGE.encode(), kind="application/xhtml+xml; charset=no-such-charset")
    )
    found = [text for _, _, text in read_all(source_of(path, "warc"))]
    assert len(found) == 4 and len(set(found)) == 1 and "Café é." in found[0]


def test_what_is_no_page_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(
        wet("a conversion")
        + response(PAGE.encode(), status="404 Not Found")
        + response(b"%PDF", kind="application/pdf")
        + response(b"<html><body></body></html>")
        + response(PAGE.encode())
    )
    found, report = read_reported(source_of(path, "warc"))
    assert len(found) == 1
    assert report.counts == {
        "documents": 1,
        "records": 6,
        "records_of_type_conversion": 1,
        "records_of_type_warcinfo": 1,
        "responses_not_200": 1,
        "responses_not_html": 1,
        "responses_without_main_text": 1,
    }


BROKEN = [
    (b"this is no record\r\n\r\n", 0, "not a WARC record with a Content-Length"),
    (b"WARC/1.0\r\nWARC-Type: conversion\r\n\r\ntext\r\n\r\n", 0, "not a WARC record with"),
    (b"WARC/1.0\r\nContent-Length: -3\r\n\r\ntext\r\n\r\n", 0, "not a WARC record with"),
]


@pytest.mark.parametrize(("broken", "offset", "reason"), BROKEN)
def test_a_broken_record_is_named_or_skipped_up_to_the_next(
    tmp_path: Path, broken: bytes, offset: int, reason: str
) -> None:
    path = tmp_path / "a.wet"
    good = wet("one")
    path.write_bytes(good + broken + wet("two"))
    message = failure(source_of(path, "wet"))
    assert f"{path}: byte offset {len(good) + offset}: {reason}" in message
    found, report = read_reported(source_of(path, "wet", malformed="skip"))
    assert found == ["one", "two"]
    assert report.counts["malformed_skipped"] == 1


def test_a_record_that_ends_early_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.wet"
    whole = wet("one", "the last text")
    path.write_bytes(whole[:-9])
    offset = whole.rindex(b"WARC/1.0")
    message = failure(source_of(path, "wet"))
    assert f"{path}: byte offset {offset}: the WARC record ends 5 bytes early" in message
    found, report = read_reported(source_of(path, "wet", malformed="skip"))
    assert found == ["one"] and report.counts["malformed_skipped"] == 1


def test_a_record_of_many_buffers_is_one_document(tmp_path: Path) -> None:
    text = "words of a long text. " * 200_000
    path = tmp_path / "a.wet"
    path.write_bytes(wet("short", text, "last"))
    assert [one for _, _, one in read_all(source_of(path, "wet"))] == ["short", text, "last"]


@pytest.mark.parametrize("block", [b"", b"no headers at all", b"HTTP/1.1 200 OK", b"\xff\x00" * 50])
def test_a_broken_http_response_is_named_skipped_or_counted(tmp_path: Path, block: bytes) -> None:
    path = tmp_path / "a.warc"
    kind = "application/http; msgtype=response"
    path.write_bytes(record("response", block, kind) + response(PAGE.encode()))
    found, report = read_reported(source_of(path, "warc", malformed="skip"))
    assert len(found) == 1
    reasons = ("malformed_skipped", "responses_not_200", "responses_not_html")
    assert sum(report.counts[reason] for reason in reasons) == 1
