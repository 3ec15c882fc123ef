"""Formats warc and wet: the responses of web archives (ISO 28500) and the text made of them.

Records are framed here, so that a record's place is its byte in the uncompressed file and the
reading goes on behind a broken one; what HTTP wrapped around a page is warcio's to undo.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.corpus.charset import Decoder, choose_charset, is_blank
from pipeline.corpus.content import Content
from pipeline.corpus.http_page import read_page
from pipeline.corpus.main_text import main_text
from pipeline.corpus.report import RawDocument

_MOST_HEADER_BYTES = 1 << 20
# No page or text is as large; a record is held as a whole, so a wrong length costs this at most.
_MOST_RECORD_BYTES = 1 << 27
_START = re.compile(rb"WARC/[0-9]\.[0-9]+[ \t]*\r?\n")
_HEADER_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile("[0-9]{1,18}")
_BLANK = re.compile(rb"[\r\n]+")


@dataclass(frozen=True, slots=True)
class _Record:
    offset: int
    headers: dict[str, str]
    raw: bytes
    """The record from its version line to the end of its block."""
    block: int
    """Where the block starts in `raw`."""


def read_wet(content: Content) -> Iterator[RawDocument]:
    """Yield the text of every conversion record; its place is the record's byte."""
    # A BOM at a record's start is no text, and the file itself has none.
    decoder = Decoder(choose_charset("utf-8", b""), content.source.undecodable, content.report)
    for record in _records(content):
        if not _is_wanted(record, "conversion", content):
            continue
        block = record.raw[record.block :]
        text = content.text(decoder, block, record.offset + record.block)
        if is_blank(text):
            content.report.counts["records_empty"] += 1
            continue
        yield RawDocument(content.part.path, record.offset, text)


def read_warc(content: Content) -> Iterator[RawDocument]:
    """Yield the main text of every response record that is an HTML page with status 200."""
    for record in _records(content):
        if not _is_wanted(record, "response", content):
            continue
        if not record.headers.get("content-type", "").lower().startswith("application/http"):
            content.report.counts["responses_not_http"] += 1
            continue
        page = read_page(record.raw[record.block :], record.offset, content)
        text = main_text(page) if page is not None else None
        if text is not None and not is_blank(text):
            yield RawDocument(content.part.path, record.offset, text)
        elif page is not None:
            content.report.counts["responses_without_main_text"] += 1


def _is_wanted(record: _Record, kind: str, content: Content) -> bool:
    found = record.headers.get("warc-type", "")
    if found == kind:
        return True
    content.report.counts[f"records_of_type_{found or 'none'}"] += 1
    return False


def _records(content: Content) -> Iterator[_Record]:
    """Yield the records; what is none is malformed, and the next "WARC/" line goes on."""
    window = _Window(content)
    remedy = "repair or remove the file"
    while window.fill(1):
        blank = _BLANK.match(window.data)
        if blank:
            window.drop(blank.end())
            continue
        offset = window.offset
        place = content.where(offset)
        end = window.find(_HEADER_END)
        start = _START.match(window.data)
        length = None
        if start and end:
            headers = _headers(bytes(window.data[start.end() : end.start()]))
            digits = headers.get("content-length", "")
            length = int(digits) if _LENGTH.fullmatch(digits) else None
        if length is None or end is None:
            content.malformed(place, "not a WARC record with a Content-Length", remedy)
            window.drop(1)
            window.drop_until(_START)
            continue
        block = end.end()
        total = block + length
        reason = window.why_not(total)
        if reason:
            content.malformed(place, reason, remedy)
            window.drop(1)
            window.drop_until(_START)
            continue
        raw = bytes(memoryview(window.data)[:total])
        window.drop(total)
        content.report.counts["records"] += 1
        yield _Record(offset, headers, raw, block)


def _headers(data: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    name = ""
    for line in data.decode("utf-8", "replace").split("\n"):
        if line[:1] in (" ", "\t") and name:  # a folded line
            headers[name] += " " + line.strip()
            continue
        name, _, value = line.partition(":")
        name = name.strip().lower()
        headers[name] = value.strip()
    return headers


class _Window:
    """The bytes from the current place on, as many as were asked for."""

    def __init__(self, content: Content) -> None:
        self._chunks = content.chunks()
        self.data = bytearray()
        self.offset = content.part.start
        self._end = None if content.compression else content.part.end

    def fill(self, size: int) -> bool:
        """Have at least `size` bytes; False if the file has fewer left."""
        while len(self.data) < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                return False
            self.data += chunk
        return True

    def why_not(self, size: int) -> str:
        """Have a record of `size` bytes; else say what is wrong with one of that size."""
        follow = self._end - self.offset if self._end is not None else None
        # Before anything is read: a length may be wrong by as much as the file is long.
        if follow is not None and size > follow:
            return f"the WARC record ends {size - follow} bytes early"
        if size > _MOST_RECORD_BYTES:
            return f"a WARC record of {size} bytes, more than the {_MOST_RECORD_BYTES} it may have"
        if not self.fill(size):
            return f"the WARC record ends {size - len(self.data)} bytes early"
        return ""

    def find(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Return the first match within what may be a record's header."""
        while True:
            match = pattern.search(self.data)
            if match or len(self.data) > _MOST_HEADER_BYTES:
                return match
            if not self.fill(len(self.data) + 1):
                return None

    def drop(self, size: int) -> None:
        """Pass over `size` bytes."""
        del self.data[:size]
        self.offset += size

    def drop_until(self, pattern: re.Pattern[bytes]) -> None:
        """Pass over everything before the next line that matches."""
        whole_line = re.compile(rb"(?<=\n)" + pattern.pattern)
        while True:
            match = whole_line.search(self.data)
            if match:
                self.drop(match.start())
                return
            # A version line is short: keep what may be the beginning of one.
            self.drop(max(0, len(self.data) - 64))
            if not self.fill(len(self.data) + 1):
                self.drop(len(self.data))
                return
