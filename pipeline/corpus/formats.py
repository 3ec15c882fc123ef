"""Which format a file is in, where its source says "auto"."""

from __future__ import annotations

from pathlib import PurePosixPath

from pipeline.errors import InputError
from pipeline.source_config import SourceConfig

DIVISIBLE = ("text", "lines", "jsonl")
"""Formats whose documents end at a line, so that ranges of a plain file can be read alone."""

_SUFFIXES = {
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".arrows": "arrow",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".md": "text",
    ".parquet": "parquet",
    ".text": "text",
    ".txt": "text",
    ".warc": "warc",
    ".wet": "wet",
    ".xml": "mediawiki",
}


def choose_format(source: SourceConfig, location: str, path: str, head: bytes) -> str:
    """Return the format of a file: the source's; with "auto", what its bytes or its name say.

    `path` has no compression suffix and `head` is uncompressed. Raises InputError if neither says.
    """
    if source.format != "auto":
        return source.format
    name = PurePosixPath(path).name.lower()
    found = _format_of_bytes(head)
    if found == "warc" and ".wet" in name:
        return "wet"
    found = found or _SUFFIXES.get(PurePosixPath(name).suffix, "")
    if not found:
        raise InputError(
            f"{location}: neither its name nor its first bytes say what format it is in; set "
            f"documents.sources[{source.name}].format"
        )
    return found


def _format_of_bytes(head: bytes) -> str:
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):  # a file; a stream's first message
        return "arrow"
    if head.startswith(b"WARC/"):
        return "warc"
    # Of UTF-8 or UTF-16, with or without a mark and an XML declaration before it.
    plain = head.replace(b"\0", b"")
    return "mediawiki" if b"<mediawiki" in plain[:16] else ""
