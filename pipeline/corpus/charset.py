"""Character sets: which one a file is in, where its lines end, and its bytes as text.

Lines and documents are found in the bytes, before anything is decoded, so that an offset is a
byte of the file in every encoding, and a bad byte spoils its own document alone.
"""

from __future__ import annotations

import codecs
import functools
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.corpus.report import ReadReport
from pipeline.errors import InputError
from pipeline.source_config import Undecodable

# Longer marks first: UTF-32 LE's begins with UTF-16 LE's.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDTHS = {"utf-16-le": 2, "utf-16-be": 2, "utf-32-le": 4, "utf-32-be": 4}
# Encodings that leave the order of the bytes to a mark; without one they are little-endian here.
_UNORDERED = {"utf-16": "utf-16-le", "utf-32": "utf-32-le", "utf-8-sig": "utf-8"}
_BLANK = " \t\r\f\v"
_WHITE_SPACE = _BLANK + "\n"
_FEWEST_BYTES = 8
_UPPER_BYTES_OF_A_SCRIPT = 3
_HANDLER = "clozeline.undecodable"

Bytes = bytes | bytearray


@dataclass(frozen=True, slots=True)
class Charset:
    """An encoding, the bytes of its line feed, and its patterns for blank lines."""

    name: str
    """Python's name of the codec, one without a byte-order mark."""
    width: int
    """Bytes of a code unit: a match of a pattern counts at a multiple of it only."""
    mark_bytes: int
    """Bytes of the byte-order mark at the file's start."""
    newline: bytes
    blank_lines: re.Pattern[bytes]
    """A line's end and the blank lines after it: what stands between two documents."""
    leading: re.Pattern[bytes]
    """Whole blank lines, from the start of a line."""
    blank: re.Pattern[bytes]
    """White space within a line, at most."""

    @property
    def divisible(self) -> bool:
        """Whether a line feed is one byte, and that byte nothing else, so that ranges can be cut.

        So it is in UTF-8, in the single-byte encodings and in those of East Asia, whose second
        bytes are never below 0x30.
        """
        return self.newline == b"\n" and self.width == 1


def choose_charset(encoding: str, head: bytes) -> Charset:
    """Return the charset of a file that begins with `head` (4 bytes are enough).

    "auto" is UTF-8 unless a byte-order mark says otherwise. A mark of the named encoding is no
    text either.
    """
    if encoding == "auto":
        for mark, name in _BYTE_ORDER_MARKS:
            if head.startswith(mark):
                return _charset(name, len(mark))
        return _charset("utf-8", 0)
    named = codecs.lookup(encoding).name
    for mark, name in _BYTE_ORDER_MARKS:
        ordered = named in ("utf-16", "utf-32") and name.startswith(named)
        if head.startswith(mark) and (ordered or name == _UNORDERED.get(named, named)):
            return _charset(name, len(mark))
    return _charset(_UNORDERED.get(named, named), 0)


def unmarked_encoding(head: bytes) -> str:
    """Return the wide encoding that a file seems to be in by its NUL bytes, "" for none.

    It begins with no byte-order mark. UTF-8 allows NUL bytes, so such a file would be read as one
    whose every other character is a NUL.
    """
    nul = [[byte == 0 for byte in head[phase::4]] for phase in range(4)]
    if len(head) < _FEWEST_BYTES:
        return ""
    for name, empty, filled in (("utf-32-le", (2, 3), 0), ("utf-32-be", (0, 1), 3)):
        if all(all(nul[phase]) for phase in empty) and not any(nul[filled]):
            return name
    for name, low, high in (("utf-16-le", 0, 1), ("utf-16-be", 1, 0)):
        upper = set(head[high::2])
        # The upper bytes of an alphabet are one or two, and 0 those of spaces and line ends.
        if 0 in upper and 0 not in head[low::2] and len(upper) <= _UPPER_BYTES_OF_A_SCRIPT:
            return name
    return ""


@functools.lru_cache(maxsize=64)
def _charset(name: str, mark_bytes: int) -> Charset:
    newline = "\n".encode(name)
    end = re.escape(newline)
    blanks = [re.escape(one.encode(name)) for one in _BLANK]
    if len(newline) == 1:
        blank, white = (b"[" + b"".join(some) + b"]*" for some in (blanks, [*blanks, end]))
    else:
        blank, white = (b"(?:" + b"|".join(some) + b")*" for some in (blanks, [*blanks, end]))
    # Blank lines are the white space up to its last line feed: one run of a class of bytes, which
    # is 20 times as fast as a group for each line.
    return Charset(
        name,
        _WIDTHS.get(name, 1),
        mark_bytes,
        newline,
        re.compile(end + white + end),
        re.compile(white + end),
        re.compile(blank),
    )


def search(
    pattern: re.Pattern[bytes], data: Bytes, position: int, width: int
) -> re.Match[bytes] | None:
    """Return the first match at or after `position` that begins at a whole code unit."""
    match = pattern.search(data, position)
    while match and match.start() % width:
        match = pattern.search(data, match.start() + 1)
    return match


def find(data: Bytes, newline: bytes, position: int, width: int) -> int:
    """Return where the first line feed at or after `position` is, -1 if there is none."""
    found = data.find(newline, position)
    while found > 0 and found % width:
        found = data.find(newline, found + 1)
    return found


def is_blank(text: str) -> bool:
    """Say whether there is nothing but ASCII white space; U+00A0 and its kind are text here."""
    return not text or (text[0] in _WHITE_SPACE and not text.strip(_WHITE_SPACE))


@dataclass(frozen=True, slots=True)
class Decoder:
    """Bytes of one file to text, by the source's policy for what is no text."""

    charset: Charset
    policy: Undecodable
    report: ReadReport
    remedy: str = (
        "convert the file to UTF-8, set the source's `encoding`, or set `undecodable` to "
        '"replace" or "skip"'
    )

    def decode(self, data: Bytes, place: Callable[[int], str]) -> str:
        """Return the text of `data`; `place(n)` names where its byte n stands.

        Raises InputError for bytes that are not of the charset if the policy is "fail".
        """
        try:
            return str(data, self.charset.name)
        except UnicodeDecodeError as error:
            if self.policy == "fail":
                raise self.failure(error, place(error.start)) from None
            return self._patched(data, place)

    def failure(self, error: UnicodeDecodeError, place: str) -> InputError:
        """Return the error for undecodable bytes under the policy "fail"."""
        name = self.charset.name.upper()
        return InputError(
            f"{place}: not {name} (byte 0x{error.object[error.start]:02x}); {self.remedy}"
        )

    def patch(self, error: UnicodeDecodeError, place: str) -> str:
        """Count undecodable bytes and return what stands in for them."""
        self.report.counts["undecodable_bytes"] += error.end - error.start
        done = "replaced" if self.policy == "replace" else "skipped"
        shown = error.object[error.start : error.end].hex()
        self.report.note(
            f"undecodable_{done}", place, detail=f"not {self.charset.name.upper()}, {done}: {shown}"
        )
        return "\ufffd" if self.policy == "replace" else ""

    def _patched(self, data: Bytes, place: Callable[[int], str]) -> str:
        # The codec calls back for each bad place, so the whole takes one pass over the bytes; to
        # start the codec again behind each would copy what is left every time.
        _current.patch = lambda error: self.patch(error, place(error.start))
        try:
            return codecs.decode(data, self.charset.name, _HANDLER)
        finally:
            del _current.patch

    def stream(
        self, chunks: Iterator[bytes], start: int, where: Callable[[int], str]
    ) -> Iterator[str]:
        """Yield the text of a stream whose first byte is byte `start`, piece by piece."""
        decoder = codecs.getincrementaldecoder(self.charset.name)(_HANDLER)
        fed = start

        def patch(error: UnicodeDecodeError) -> str:
            place = where(base + error.start)
            if self.policy == "fail":
                raise self.failure(error, place) from None
            return self.patch(error, place)

        for chunk in _closed(chunks):
            base = fed - len(decoder.getstate()[0])
            fed += len(chunk)
            _current.patch = patch
            try:
                text = decoder.decode(chunk, final=not chunk)
            finally:
                del _current.patch
            yield text


def _closed(chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield from chunks
    yield b""


_current = threading.local()


def _handle(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return _current.patch(error), error.end


codecs.register_error(_HANDLER, _handle)
