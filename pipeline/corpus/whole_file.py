"""Format file: one document a file."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.corpus.charset import is_blank
from pipeline.corpus.content import Content
from pipeline.corpus.report import RawDocument


def read_whole_file(content: Content) -> Iterator[RawDocument]:
    """Yield the text of the whole file; its place is 0."""
    decoder = content.decoder()
    data = content.read_all()
    del data[: decoder.charset.mark_bytes]
    text = content.text(decoder, data, decoder.charset.mark_bytes)
    data.clear()
    if not is_blank(text):
        yield RawDocument(content.part.path, 0, text)
