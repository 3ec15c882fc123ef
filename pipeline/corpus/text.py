"""Format text: blank lines end documents."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.corpus.charset import Bytes, Charset, is_blank, search
from pipeline.corpus.content import Content
from pipeline.corpus.report import RawDocument


def read_text(content: Content) -> Iterator[RawDocument]:
    """Yield the documents between blank lines (empty, or ASCII white space alone)."""
    decoder = content.decoder()
    for offset, data in _documents(content, decoder.charset):
        text = content.text(decoder, data, offset)
        if isinstance(data, bytearray):
            data.clear()  # it may be large, and the generator that made it still holds it
        document = RawDocument(content.part.path, offset, text)
        del text
        if not is_blank(document.text):
            one = [document]
            del document
            yield one.pop()  # its text may be large: nobody holds it here meanwhile


def _documents(content: Content, charset: Charset) -> Iterator[tuple[int, Bytes]]:
    """Yield (offset, bytes) of what stands between blank lines, white space included.

    A document of any size is collected in one growing buffer, and no byte is looked at twice.
    """
    width, newline = charset.width, charset.newline
    base = content.part.start + charset.mark_bytes  # of data's first byte
    document, start = bytearray(), base
    mid_line = False  # whether the document's last line has text and goes on
    held: Bytes = b""
    for chunk in content.chunks_after_mark(charset):
        if held and not mid_line and charset.blank.fullmatch(chunk):
            held = bytearray(held) if isinstance(held, bytes) else held
            held += chunk  # a line of white space, so far: what ends it says what it is
            continue
        data = bytes(held) + chunk if held else chunk
        held = b""
        usable = len(data) - len(data) % width
        position = 0
        if not mid_line and (leading := charset.leading.match(data)):
            if document:
                del document[-len(newline) :]
                yield start, document
                document = bytearray()
            position = leading.end()
        while match := search(charset.blank_lines, data, position, width):
            if document:
                document += data[position : match.start()]
                yield start, document
                document = bytearray()
            else:
                yield base + position, data[position : match.start()]
            position = match.end()
        # A last line of white space alone may turn out to be blank: hold it back.
        line = data.rfind(newline, position, usable)
        while line > 0 and line % width:
            line = data.rfind(newline, position, line + len(newline) - 1)
        line = position if line < 0 else line + len(newline)
        at_line_start = line > position or not mid_line or position > 0
        if at_line_start and charset.blank.fullmatch(data, line, usable):
            usable = line
            mid_line = False
        else:
            mid_line = True
        if not document:
            start = base + position
        document += data[position:usable]
        held = data[usable:]
        base += usable
    document += held
    if document:
        yield start, document
