"""Web archives: text of conversion records, main text of responses."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from pathlib import Path

import pytest
from backports import zstd

from pipeline.corpus import ReadReport, list_files, plan_splits, read_split
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


def test_a_record_whose_length_is_no_sane_number_is_malformed(tmp_path: Path) -> None:
    path = tmp_path / "a.wet"
    for digits in ("1" * 5000, "9" * 25, "\u00b2", "200000000", ""):
        broken = f"WARC/1.0\r\nContent-Length: {digits}\r\n\r\nx\r\n\r\n".encode()
        data = wet("one") + broken + wet("two")
        for name, packed in (("a.wet", data), ("a.wet.gz", gzip.compress(data))):
            path = tmp_path / name
            path.write_bytes(packed)
            assert f"{path}: byte offset {len(wet('one'))}: " in failure(source_of(path, "wet"))
            found, report = read_reported(source_of(path, "wet", malformed="skip"))
            assert found == ["one", "two"] and report.counts["malformed_skipped"] == 1


def test_a_wrong_length_does_not_read_the_file_into_memory(tmp_path: Path) -> None:
    text = "words of a text. " * 60_000
    many = b"".join(record("conversion", text.encode(), "text/plain") for _ in range(40))
    # A length that the file has no bytes for, and one that no record may have.
    starts = {"a.wet": b"999999999999", "a.wet.gz": b"999999999"}
    for name, length in starts.items():
        data = b"WARC/1.0\r\nContent-Length: " + length + b"\r\n\r\n" + many
        path = tmp_path / name
        path.write_bytes(gzip.compress(data, 1) if name.endswith("gz") else data)
        tracemalloc.start()
        try:
            found, _ = read_reported(source_of(path, "wet", malformed="skip"))
            assert len(found) == 40
            del found
            source = source_of(path, "wet", malformed="skip")
            (split,) = plan_splits(source, list_files(source, 0), 1 << 40)
            tracemalloc.reset_peak()
            for _ in read_split(source, split, ReadReport()):
                pass
            assert tracemalloc.get_traced_memory()[1] < len(many) // 2
        finally:
            tracemalloc.stop()


CODECS = ["idna", "undefined", "punycode", "unicode_escape", "rot13", "base64", "utf-7", "nosuch"]


@pytest.mark.parametrize("name", CODECS)
def test_a_charset_that_is_none_leaves_the_page_its_own(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.warc"
    latin = PAGE.replace("utf-8", "iso-8859-1").encode("latin-1")
    kind = f"text/html; charset={name}"
    path.write_bytes(response(PAGE.encode(), kind=kind) + response(latin, kind=kind))
    found, report = read_reported(source_of(path, "warc"))
    assert len(found) == 2 and all("Café é." in text for text in found)
    assert report.counts["responses_of_unknown_charset"] == 2


def test_a_wrong_charset_gives_way_to_one_that_fits_the_page(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    latin = PAGE.replace("utf-8", "iso-8859-1").encode("latin-1")
    path.write_bytes(response(latin) + response(PAGE.encode(), kind="text/html; charset=ascii"))
    found, report = read_reported(source_of(path, "warc"))
    assert len(found) == 2 and all("Café é." in text for text in found)
    assert report.counts["responses_of_wrong_charset"] == 2


def test_a_page_that_no_charset_fits_follows_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(response(PAGE.encode("latin-1")))
    message = failure(source_of(path, "warc"))
    assert f"{path}: byte offset 0: byte {PAGE.index(chr(233))} of the page: not UTF-8" in message
    assert message.endswith('set the source\'s `undecodable` to "replace" or "skip"')
    (found,), report = read_reported(source_of(path, "warc", undecodable="replace"))
    assert "Café \ufffd." in found and report.counts["undecodable_bytes"] == 1
    (found,), report = read_reported(source_of(path, "warc", undecodable="skip"))
    assert "Café ." in found and report.counts["undecodable_skipped"] == 1
    # Where nothing is declared there is nothing to hold against the page: a guess has to do.
    path.write_bytes(response(PAGE.replace("utf-8", "").encode("latin-1"), kind="text/html"))
    (found,), report = read_reported(source_of(path, "warc"))
    assert "Caf" in found and report.counts["responses_of_guessed_charset"] == 1


def cut_bodies() -> dict[str, tuple[bytes, str]]:
    page = PAGE.encode()
    chunked = b"%x\r\n%s\r\n" % (len(page), page)
    gzipped, deflated = gzip.compress(page), zlib.compress(page)
    return {
        "gzip": (gzipped[: len(gzipped) // 2], "Content-Encoding: gzip\r\n"),
        "gzip's end": (gzipped[:-4], "Content-Encoding: gzip\r\n"),
        "deflate": (deflated[: len(deflated) // 2], "Content-Encoding: deflate\r\n"),
        "last chunk": (chunked, "Transfer-Encoding: chunked\r\n"),
        "within a chunk": (chunked[:500], "Transfer-Encoding: chunked\r\n"),
        "zstd": (bytes(zstd.compress(page))[:-9], "Content-Encoding: zstd\r\n"),
    }


@pytest.mark.parametrize("name", cut_bodies())
def test_a_packed_body_that_is_cut_short_is_malformed(tmp_path: Path, name: str) -> None:
    body, header = cut_bodies()[name]
    path = tmp_path / "a.warc"
    path.write_bytes(response(body, more=header) + response(PAGE.encode()))
    assert f"{path}: byte offset 0: broken HTTP response: " in failure(source_of(path, "warc"))
    found, report = read_reported(source_of(path, "warc", malformed="skip"))
    assert len(found) == 1 and report.counts["malformed_skipped"] == 1


def test_content_encodings_are_undone_or_counted(tmp_path: Path) -> None:
    page = PAGE.encode()
    raw = zlib.compressobj(wbits=-15)
    bodies = {
        "gzip": gzip.compress(page),
        "x-gzip": page,  # a crawler that undid it and kept the header
        "deflate": zlib.compress(page),
        "Deflate": raw.compress(page) + raw.flush(),
        "zstd": bytes(zstd.compress(page)),
        "deflate, gzip": gzip.compress(zlib.compress(page)),
        "identity": page,
        "br": b"\x1b\x03\x00",
        "compress": b"\x1f\x9d\x90",
    }
    path = tmp_path / "a.warc"
    path.write_bytes(
        b"".join(response(b, more=f"Content-Encoding: {name}\r\n") for name, b in bodies.items())
    )
    found, report = read_reported(source_of(path, "warc"))
    assert len(found) == 7 and len(set(found)) == 1
    assert report.counts["responses_of_unknown_content_encoding"] == 2
    assert any("Content-Encoding br: cannot be undone" in place for place in report.places)


def test_utf16_is_believed_of_pages_that_are_in_it(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    even = PAGE.encode() + b" " * (len(PAGE.encode()) % 2)
    wide = PAGE.replace("utf-8", "utf-16")
    path.write_bytes(
        response(even, kind="text/html; charset=utf-16")
        + response(even.replace(b"utf-8", b"utf-16"), kind="text/html")
        + response(wide.encode("utf-16-le"), kind="text/html; charset=utf-16le")
        + response(wide.encode("utf-16"), kind="text/html; charset=utf-8")
    )
    found, report = read_reported(source_of(path, "warc"))
    assert len(found) == 4 and all("Café é." in text for text in found)
    assert report.counts["responses_of_wrong_charset"] == 2


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_unpacks_without_bound_is_malformed(tmp_path: Path, encoding: str) -> None:
    pack = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding]
    path = tmp_path / "a.warc"
    path.write_bytes(
        response(pack(bytes(200_000_000)), more=f"Content-Encoding: {encoding}\r\n")
        + response(PAGE.encode())
    )
    found, report = read_reported(source_of(path, "warc", malformed="skip"))
    assert len(found) == 1 and report.counts["malformed_skipped"] == 1
