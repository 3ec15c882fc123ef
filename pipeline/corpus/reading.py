"""Splits -> raw documents, streaming: each file range through the reader of its format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from pipeline.corpus import docstrings
from pipeline.corpus.content import Content
from pipeline.corpus.formats import choose_format
from pipeline.corpus.lines import read_jsonl, read_lines
from pipeline.corpus.mediawiki import read_mediawiki
from pipeline.corpus.report import RawDocument, ReadReport
from pipeline.corpus.splits import FileRange, Split
from pipeline.corpus.streams import check_version, first_bytes
from pipeline.corpus.tables import read_arrow, read_parquet
from pipeline.corpus.text import read_text
from pipeline.corpus.warc import read_warc, read_wet
from pipeline.corpus.whole_file import read_whole_file
from pipeline.source_config import SourceConfig

_READERS: dict[str, Callable[[Content], Iterator[RawDocument]]] = {
    "arrow": read_arrow,
    "file": read_whole_file,
    "jsonl": read_jsonl,
    "lines": read_lines,
    "mediawiki": read_mediawiki,
    "parquet": read_parquet,
    "text": read_text,
    "warc": read_warc,
    "wet": read_wet,
}


def read_split(
    source: SourceConfig, split: Split, report: ReadReport, working_storage: str = ""
) -> Iterator[RawDocument]:
    """Yield the documents of a split in order, as they are read; `report` says what happened.

    At most one document and buffers of a few MiB are held; compressed tables are unpacked into
    the local directory `working_storage` (empty: the system's own). Raises InputError that names
    the file and the byte offset (or row, or page) for what the source's policies do not skip or
    replace.
    """
    for part in split.ranges:
        documents = (
            _read_module(part)
            if source.format == "python_docstrings"
            else _read_range(source, part, report, working_storage)
        )
        yield from map(partial(_counted, report), documents)


def _counted(report: ReadReport, document: RawDocument) -> RawDocument:
    report.counts["documents"] += 1
    return document


def _read_module(part: FileRange) -> Iterator[RawDocument]:
    check_version(part.location, None, part.end, part.version)
    text = docstrings.read_module(part.location)
    yield RawDocument(part.path, 0, text or "", "not_parsable" if text is None else "")


def _read_range(
    source: SourceConfig, part: FileRange, report: ReadReport, working_storage: str
) -> Iterator[RawDocument]:
    content = Content(source, part, report, working_storage)
    try:
        if not content.head:
            report.note("empty_files", content.where(0), detail="nothing in it once uncompressed")
            return
        head = content.head
        if source.format == "auto" and part.start:  # then the file is plain
            head = first_bytes(part.location, part.end, part.version)
        kind = choose_format(source, part.location, part.path, head)
        yield from _READERS[kind](content)
        # It may have been written to while it was read.
        check_version(part.location, None, part.end, part.version)
    finally:
        content.close()
