"""Formats of lines: one document a line, and JSON Lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from pipeline.corpus.charset import Bytes, Charset, Decoder, find, is_blank
from pipeline.corpus.content import Content
from pipeline.corpus.fields import MISSING, Identifiers, nested_field
from pipeline.corpus.report import RawDocument

_SURROGATES = re.compile("[\ud800-\udfff]")


def read_lines(content: Content) -> Iterator[RawDocument]:
    """Yield every line that is not white space alone; only LF and CR LF end lines."""
    decoder = content.decoder()
    path = content.part.path
    for offset, data in lines_of(content, decoder.charset):
        text = content.text(decoder, data, offset).removesuffix("\r")
        if isinstance(data, bytearray):
            data.clear()
        document = RawDocument(path, offset, text)
        del text
        if not is_blank(document.text):
            one = [document]
            del document
            yield one.pop()  # its text may be large: nobody holds it here meanwhile


def lines_of(content: Content, charset: Charset) -> Iterator[tuple[int, Bytes]]:
    """Yield (offset, bytes) of every line, but empty ones, without its line feed.

    A line of any size is collected in one growing buffer, which the caller may clear.
    """
    newline, width = charset.newline, charset.width
    offset = content.part.start + charset.mark_bytes
    pending = bytearray()
    for chunk in content.chunks_after_mark(charset):
        if width == 1:
            first, *others = chunk.split(newline)
            pending += first
            if not others:
                continue
            length = len(pending) + 1
            yield offset, pending
            offset += length
            pending = bytearray(others.pop())
            for line in others:
                if line:
                    yield offset, line
                offset += len(line) + 1
            continue
        position = max(0, len(pending) - len(pending) % width)
        pending += chunk
        start = 0
        while (end := find(pending, newline, position, width)) >= 0:
            yield offset + start, pending[start:end]
            start = position = end + len(newline)
        del pending[:start]
        offset += start
    if pending:
        yield offset, pending


def read_jsonl(content: Content) -> Iterator[RawDocument]:
    """Yield the text of every JSON object, one a line; lines of white space are passed over."""
    decoder = content.decoder()
    identifiers = Identifiers(content)
    for offset, data in lines_of(content, decoder.charset):
        document = _document(content, decoder, identifiers, offset, data)
        if document is not None:
            yield document


def _document(
    content: Content, decoder: Decoder, identifiers: Identifiers, offset: int, data: Bytes
) -> RawDocument | None:
    source, place = content.source, content.where(offset)
    escaped = False
    try:
        if decoder.charset.name != "utf-8":
            raise ValueError("to be decoded first")
        if data.isspace():
            return None
        record = orjson.loads(data)
        if source.id_field and isinstance(nested_field(record, source.id_field), float):
            raise ValueError("a whole number beyond 64 bits would be one, too")
    except ValueError:
        # orjson is twice as fast, and stricter; what it refuses is judged by Python's own parser,
        # which takes lone surrogates, and by the source's policies.
        line = content.text(decoder, data, offset)
        if is_blank(line):
            return None
        escaped = "\\u" in line
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            content.malformed(place, f"not a JSON object: {error}", "repair the line")
            return None
        finally:
            del line
    if isinstance(data, bytearray):
        data.clear()
    text = nested_field(record, source.text_field)
    if not isinstance(text, str):
        content.malformed(
            place,
            f'no string field "{source.text_field}"',
            f"set documents.sources[{source.name}].text_field or repair the line",
        )
        return None
    key: int | str = offset
    if source.id_field:
        identifier = _identifier(nested_field(record, source.id_field))
        if identifier is None:
            content.malformed(
                place,
                f'no string or whole number "{source.id_field}"',
                f"set documents.sources[{source.name}].id_field or repair the line",
            )
            return None
        key = identifiers.register(_without_surrogates(identifier, content, place), place)
    if escaped:
        text = _without_surrogates(text, content, place)
    return RawDocument(content.part.path, key, text)


def _identifier(value: Any) -> str | None:
    if value is MISSING or isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)


def _without_surrogates(text: str, content: Content, place: str) -> str:
    """Return the text with U+FFFD for lone surrogates: JSON can escape them, UTF-8 has none."""
    patched, count = _SURROGATES.subn("\ufffd", text)
    if count:
        content.report.note("texts_with_lone_surrogates", place, detail="lone surrogates replaced")
    return patched if count else text
