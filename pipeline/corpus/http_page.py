"""HTTP responses of web archives: which are HTML pages, and their bytes as text.

What HTTP wrapped around a page is undone as a browser does it, but for one thing: a body that is
cut short is an error, never a shorter page.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable
from typing import Any

from pipeline.corpus.charset import Decoder, choose_charset
from pipeline.corpus.compression import HEAD_BYTES, DecompressedStream, compression_of_bytes
from pipeline.corpus.content import Content
from pipeline.errors import InputError
from pipeline.source_config import is_encoding

_HEAD = (
    b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://localhost/\r\n"
    b"Content-Type: application/http; msgtype=response\r\nContent-Length: %d\r\n\r\n"
)
_HTML = ("text/html", "application/xhtml+xml")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9_.:-]+)", re.IGNORECASE)
# Where a page names its own charset: <meta charset> or <?xml encoding?>, in its first bytes.
_OWN_CHARSET = re.compile(
    rb"(?:<meta\b[^>]{0,500}?charset|<\?xml\b[^>]{0,100}?encoding)\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]+)",
    re.IGNORECASE,
)
_OWN_CHARSET_BYTES = 4096
_CHUNK_LINE = re.compile(rb"[0-9A-Fa-f]{1,8}[ \t]*(?:;[^\r\n]*)?\r\n")
_READ_BYTES = 1 << 20
_MOST_PAGE_BYTES = 1 << 27
_WIDE = ("utf-16", "utf_16", "utf16", "utf-32", "utf_32", "utf32", "ucs-2", "unicode")
_UNCHANGED = ("", "identity", "none", "utf-8")
_REMEDY = 'set the source\'s `undecodable` to "replace" or "skip"'


def read_page(block: bytes, offset: int, content: Content) -> str | None:
    """Return the HTML of the response record at byte `offset`; None, and counted, if it is none.

    Raises InputError for a broken response or undecodable bytes if the source's policy is "fail".
    """
    from warcio.archiveiterator import ArchiveIterator  # other formats need not pay for it
    from warcio.bufferedreaders import ChunkedDataException
    from warcio.exceptions import ArchiveLoadFailed
    from warcio.statusandheaders import StatusAndHeadersParserException

    counts = content.report.counts
    place = content.where(offset)
    try:
        # A header of our own: warcio fails where one that it looks at is missing.
        head = _HEAD % len(block)
        parsed = next(iter(ArchiveIterator(io.BytesIO(head + block + b"\r\n\r\n"))))
        http = parsed.http_headers
        if http is None:
            raise ValueError("no HTTP headers")
        kind, _, options = http.get_header("Content-Type", "").partition(";")
        if http.get_statuscode() != "200":
            counts["responses_not_200"] += 1
            return None
        if kind.strip().lower() not in _HTML:
            counts["responses_not_html"] += 1
            return None
        body = _whole(parsed.raw_stream.read)
        if "chunked" in http.get_header("Transfer-Encoding", "").lower():
            body = _without_chunks(body)
        for encoding in reversed(http.get_header("Content-Encoding", "").split(",")):
            unpacked = _unpacked(body, encoding.strip().lower())
            if unpacked is None:
                content.report.note(
                    "responses_of_unknown_content_encoding",
                    place,
                    detail=f"Content-Encoding {encoding.strip()}: cannot be undone, left out",
                )
                return None
            body = unpacked
    except (
        ArchiveLoadFailed,
        ChunkedDataException,
        StatusAndHeadersParserException,
        StopIteration,
        ValueError,
        OSError,
        EOFError,
        zlib.error,
        InputError,
    ) as error:
        reason = str(error).split(";")[0]
        content.malformed(place, f"broken HTTP response: {reason}", "repair the file")
        return None
    return _decoded(body, options, place, content)


def _without_chunks(body: bytes) -> bytes:
    from warcio.bufferedreaders import ChunkedDataReader

    # Many crawlers store the body without its chunks, and the header that promises them.
    if not _CHUNK_LINE.match(body):
        return body
    reader = ChunkedDataReader(io.BytesIO(body), raise_exceptions=True)
    return _whole(reader.read)


def _unpacked(body: bytes, encoding: str) -> bytes | None:
    """Return a body without its content encoding; None for an encoding that is not known here."""
    if encoding in _UNCHANGED:
        return body
    if encoding in ("gzip", "x-gzip", "zstd"):
        compression = compression_of_bytes(body)
        if not compression:  # as with chunks: the crawler undid it and kept the header
            return body
        stream = DecompressedStream(io.BytesIO(body), compression, "the page")
        return _whole(stream.read)
    if encoding == "deflate":
        # Servers send it with zlib's header, as they should, and without one.
        for bits in (zlib.MAX_WBITS, -zlib.MAX_WBITS):
            decoder: Any = zlib.decompressobj(bits)
            try:
                data: bytes = decoder.decompress(body, _MOST_PAGE_BYTES)
            except zlib.error:
                continue
            if not decoder.eof:
                raise ValueError(
                    "its deflated body ends in the middle of a stream, or unpacks to more than "
                    f"{_MOST_PAGE_BYTES} bytes"
                )
            return data
        return body if body.lstrip().startswith(b"<") else None
    return None


def _decoded(body: bytes, options: str, place: str, content: Content) -> str:
    """Return the text of a page: by HTTP's charset, the page's own, UTF-8, or the nearest guess.

    The first that fits every byte counts. Where none does the source's policy decides, by the
    first that is known.
    """
    marked = choose_charset("auto", body[:HEAD_BYTES])
    declared = [marked.name] if marked.mark_bytes else []
    declared += [match[1] for match in [_CHARSET.search(options)] if match]
    own = _OWN_CHARSET.search(body, 0, _OWN_CHARSET_BYTES)
    if own:
        declared.append(own[1].decode("ascii"))
    known = [name for name in declared if is_encoding(name)]
    if len(known) < len(declared):
        content.report.counts["responses_of_unknown_charset"] += 1
    for number, name in enumerate([*known, "utf-8"]):
        text = _strictly(body, name)
        if text is not None:
            if number:
                content.report.counts["responses_of_wrong_charset"] += 1
            return text
    if not known:  # nothing was declared, so no declaration can be wrong
        from trafilatura.utils import detect_encoding

        content.report.counts["responses_of_guessed_charset"] += 1
        known = [name for name in detect_encoding(body) if is_encoding(name)]
        texts = (_strictly(body, name) for name in known)
        text = next((one for one in texts if one is not None), None)
        if text is not None:
            return text
    charset = choose_charset(known[0] if known else "utf-8", b"")
    decoder = Decoder(charset, content.source.undecodable, content.report, _REMEDY)
    return decoder.decode(body, lambda position: f"{place}: byte {position} of the page")


def _strictly(body: bytes, encoding: str) -> str | None:
    # Pairs of ASCII bytes are UTF-16 as well, of Chinese: HTML in it has ASCII tags, thus NULs.
    if encoding.lower().startswith(_WIDE) and b"\0" not in body[:HEAD_BYTES]:
        return None
    try:
        return str(body, encoding)
    except UnicodeError:
        return None


def _whole(read: Callable[[int], bytes]) -> bytes:
    """Return all that can be read; ValueError for more than any page has (a "zip bomb")."""
    parts, size = [], 0
    while data := read(_READ_BYTES):
        parts.append(data)
        size += len(data)
        if size > _MOST_PAGE_BYTES:
            raise ValueError(f"its body unpacks to more than {_MOST_PAGE_BYTES} bytes")
    return b"".join(parts)
