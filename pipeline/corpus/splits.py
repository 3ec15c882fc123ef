"""Files -> splits: how the reading of a source is divided, at the starts of documents only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.corpus.charset import Charset, choose_charset, search
from pipeline.corpus.compression import choose_compression
from pipeline.corpus.files import InputFile
from pipeline.corpus.formats import DIVISIBLE, choose_format
from pipeline.corpus.parquet_groups import row_group_starts
from pipeline.corpus.streams import RawStream, first_bytes, open_arrow
from pipeline.source_config import SourceConfig

_SCAN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileRange:
    """The stored bytes [start, end) of a file, both at the start of a document (or its end)."""

    location: str
    path: str
    start: int
    end: int
    version: str = ""
    """Of the file when it was listed; a file that is opened with another one was changed."""


@dataclass(frozen=True, slots=True)
class Split:
    """One unit of reading: ranges of files of one source, in order."""

    number: int
    source: str
    ranges: tuple[FileRange, ...]

    @property
    def bytes(self) -> int:
        """Raw bytes of the split."""
        return sum(part.end - part.start for part in self.ranges)


def plan_splits(source: SourceConfig, files: Sequence[InputFile], split_bytes: int) -> list[Split]:
    """Cut a source's files, in order, into splits of about `split_bytes` raw bytes.

    Small files share a split. Large uncompressed ones of lines are cut at the start of a document,
    Parquet files between row groups; every other file is one range.
    """
    splits: list[Split] = []
    pending: list[FileRange] = []
    pending_bytes = 0
    for file in files:
        for part in _ranges(source, file, split_bytes):
            if pending and pending_bytes + part.end - part.start > split_bytes:
                splits.append(Split(len(splits), source.name, tuple(pending)))
                pending, pending_bytes = [], 0
            pending.append(part)
            pending_bytes += part.end - part.start
    if pending:
        splits.append(Split(len(splits), source.name, tuple(pending)))
    return splits


def _ranges(source: SourceConfig, file: InputFile, split_bytes: int) -> Iterator[FileRange]:
    start = 0
    for end in _cuts(source, file, split_bytes) if file.bytes > split_bytes else ():
        yield FileRange(file.location, file.path, start, end, file.version)
        start = end
    if start < file.bytes:
        yield FileRange(file.location, file.path, start, file.bytes, file.version)


def _cuts(source: SourceConfig, file: InputFile, split_bytes: int) -> Iterator[int]:
    """Yield where a large file may be cut, in order, about every `split_bytes`."""
    if source.format not in ("auto", "parquet", *DIVISIBLE):
        return
    head = first_bytes(file.location, file.bytes, file.version)
    if choose_compression(file.location, head):
        return
    kind = choose_format(source, file.location, file.path, head)
    start = 0
    if kind == "parquet":
        with open_arrow(file.location, file.bytes, file.version) as opened:
            starts = row_group_starts(opened, file.location)
        for place in starts[1:]:
            if place - start >= split_bytes:
                yield place
                start = place
        return
    charset = choose_charset(source.encoding, head)
    if kind not in DIVISIBLE or not charset.divisible:
        return
    while file.bytes - start > split_bytes:
        start = _next_document(kind, charset, file, start + split_bytes)
        if start < file.bytes:
            yield start


def _next_document(kind: str, charset: Charset, file: InputFile, offset: int) -> int:
    """Return where the first document at or after `offset` starts; the file's size if none."""
    # One byte back: a boundary may end exactly at `offset`.
    stream = RawStream(file.location, offset - 1, file.bytes, file.version)
    try:
        if kind == "text":
            return _after_blank_lines(stream, charset, offset - 1)
        base = offset - 1
        while chunk := stream.read(_SCAN_BYTES):
            found = chunk.find(b"\n") + 1
            if found:
                return base + found
            base += len(chunk)
        return file.bytes
    finally:
        stream.close()


def _after_blank_lines(stream: RawStream, charset: Charset, base: int) -> int:
    """Return where the first run of blank lines ends, or the stream."""
    window = b""
    in_run = False
    while chunk := stream.read(_SCAN_BYTES):
        window += chunk
        position = 0
        if not in_run:
            match = search(charset.blank_lines, window, 0, 1)
            if match is None:
                # The run may have begun: with a line feed and nothing but blanks behind it.
                kept = len(window.rstrip(b" \t\r\f\v\n"))
                base, window = base + kept, window[kept:]
                continue
            in_run, position = True, match.end()
        elif more := charset.leading.match(window):
            position = more.end()
        base, window = base + position, window[position:]
        blank = charset.blank.match(window)
        if blank is None or blank.end() < len(window):
            return base
    return base + len(window) if not in_run else base
