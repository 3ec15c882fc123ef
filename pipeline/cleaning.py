"""Cleaning of raw text: one compiled pass over the UTF-8 of many documents, every change counted.

A cleaned document is a run of lines that are not empty, ended by one line feed each but the last.
"""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.config import CleaningConfig
from pipeline.utf8 import decode

# Classes of code points. Letters and everything not named below are text.
_TEXT, _LINE_FEED, _RETURN, _SPACE, _SEPARATOR, _CONTROL, _ZERO_WIDTH, _SYMBOL = range(8)

# White space that text processors elsewhere take for a line end: never one here.
_SEPARATORS = (0x0B, 0x0C, 0x1C, 0x1D, 0x1E, 0x1F, 0x85, 0x2028, 0x2029)
_SPACES = (0x09, 0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)
# Without width and without meaning for the reader. The joiners U+200C and U+200D stay: Persian,
# the languages of India and emoji are spelt with them.
_ZERO_WIDTHS = (0xAD, 0x180E, 0x200B, 0x2060, 0xFEFF)
_REPLACEMENT = 0xFFFD

# Text that is normalised at a time.
_NORMALIZED_BYTES = 1 << 16

# What the pass counts, in the order of its counters.
COUNTERS = (
    "control_characters_removed",
    "zero_width_characters_removed",
    "white_space_collapsed",
    "other_white_space_to_space",
    "carriage_returns_removed",
    "symbol_lines_dropped",
    "symbol_line_bytes_dropped",
)
_CONTROLS_OUT, _ZERO_WIDTHS_OUT, _SPACES_OUT, _SEPARATED, _RETURNS_OUT, _LINES_OUT, _BYTES_OUT = (
    range(len(COUNTERS))
)


@dataclass(frozen=True, slots=True)
class CleanedTexts:
    """Documents after cleaning, back to back with one line feed after each."""

    utf8: NDArray[np.uint8]
    """All documents."""
    ends: NDArray[np.int64]
    """Byte at which each document ends; its line feed is there, the next one begins after it."""

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield the bytes [start, end) of each document."""
        start = 0
        for end in self.ends.tolist():
            yield start, end
            start = end + 1

    def document(self, number: int) -> bytes:
        """Return one document."""
        start = int(self.ends[number - 1]) + 1 if number else 0
        return self.utf8[start : int(self.ends[number])].tobytes()

    def select(self, kept: NDArray[np.bool_]) -> CleanedTexts:
        """Return the documents where `kept` is true."""
        starts = np.concatenate(([0], self.ends[:-1] + 1))[kept]
        stops = self.ends[kept] + 1
        parts = [self.utf8[start:stop] for start, stop in zip(starts, stops, strict=True)]
        utf8 = np.concatenate([*parts, self.utf8[:0]])
        return CleanedTexts(utf8, np.cumsum(stops - starts) - 1)


@functools.cache
def _classes() -> NDArray[np.uint8]:
    """Return the class of every code point, uint8 [0x110000]."""
    # By Unicode category once, in one pass over all code points.
    table = np.zeros(0x110000, np.uint8)
    kinds = {"M": _SYMBOL, "P": _SYMBOL, "S": _SYMBOL, "N": _SYMBOL}  # a mark alone is no letter
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        if category == "Cc":
            table[code] = _CONTROL
        elif category[0] in kinds:
            table[code] = kinds[category[0]]
    for codes, kind in (
        (_SPACES, _SPACE),
        (_SEPARATORS, _SEPARATOR),
        (_ZERO_WIDTHS, _ZERO_WIDTH),
        ((0x0A,), _LINE_FEED),
        ((0x0D,), _RETURN),
        ((_REPLACEMENT,), _CONTROL),
    ):
        table[list(codes)] = kind
    return table


def clean(texts: Iterable[str], rules: CleaningConfig, counts: Counter[str]) -> CleanedTexts:
    r"""Clean documents; `counts` is added to. No text is held longer than its turn.

    Lines end at \n and \r\n only. Every other separator is a space, control characters and U+FFFD
    vanish (Devlin et al. 2019, released code), and so on as `rules` say.
    """
    composed = True
    parts: list[bytes] = []
    for text in texts:
        composed = composed and (text.isascii() or unicodedata.is_normalized("NFC", text))
        parts.append(_encode(text, counts))
        del text  # a character may take four bytes
    raw = np.frombuffer(b"".join(parts), np.uint8)
    ends = np.cumsum(np.fromiter(map(len, parts), np.int64, count=len(parts)))
    del parts
    found = np.zeros(len(COUNTERS), np.int64)
    utf8, cleaned_ends = _clean(
        raw,
        ends,
        _classes(),
        rules.remove_control,
        rules.remove_zero_width,
        rules.collapse_white_space,
        rules.drop_symbol_lines,
        found,
    )
    del raw
    for name, number in zip(COUNTERS, found.tolist(), strict=True):
        if number:
            counts[name] += number
    # What stood between a letter and its accent may be gone now.
    removed = bool(found[_CONTROLS_OUT] or found[_ZERO_WIDTHS_OUT])
    if rules.normalize_nfc and (removed or not composed):
        return _normalized(utf8, cleaned_ends, counts)
    return CleanedTexts(utf8, cleaned_ends)


def _encode(text: str, counts: Counter[str]) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate: JSON can escape one, UTF-8 cannot hold it
        data = text.encode(errors="ignore")
        counts["surrogates_removed"] += sum(0xD800 <= ord(one) <= 0xDFFF for one in text)
        return data


def _normalized(
    utf8: NDArray[np.uint8], ends: NDArray[np.int64], counts: Counter[str]
) -> CleanedTexts:
    parts: list[bytes] = []
    changed: list[tuple[int, int]] = []
    start = 0
    while start < utf8.size:
        end = _ascii_start(utf8, start + _NORMALIZED_BYTES)
        data = utf8[start:end].tobytes()
        text = data.decode()
        if not unicodedata.is_normalized("NFC", text):
            data = unicodedata.normalize("NFC", text).encode()
            changed.append((start, end))
        parts.append(data)
        start = end
    if not changed:
        return CleanedTexts(utf8, ends)
    composed = np.frombuffer(b"".join(parts), np.uint8)
    # Line feeds stay what they are, so the same ones end the documents.
    feeds = np.searchsorted(np.flatnonzero(utf8 == 0x0A), ends)
    cleaned = CleanedTexts(composed, np.flatnonzero(composed == 0x0A)[feeds])
    touched: set[int] = set()
    for first, last in changed:
        low, high = np.searchsorted(ends, [first, last])
        touched.update(range(low, min(high + 1, ends.size)))
    before, after = CleanedTexts(utf8, ends), cleaned
    for number in touched:
        if before.document(number) != after.document(number):
            counts["documents_normalized"] += 1
    return cleaned


def _ascii_start(utf8: NDArray[np.uint8], at: int) -> int:
    """Return the first ASCII byte from `at` on: nothing before it composes with it."""
    while at < utf8.size and utf8[at] >= 0x80:
        at += 1
    return min(at, utf8.size)


@nb.njit(cache=True)
def _clean(
    raw: NDArray[np.uint8],
    ends: NDArray[np.int64],
    classes: NDArray[np.uint8],
    remove_control: bool,
    remove_zero_width: bool,
    collapse_white_space: bool,
    drop_symbol_lines: bool,
    counts: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Write each document's lines, then a line feed; see `clean`."""
    out = np.empty(raw.size + ends.size, np.uint8)
    out_ends = np.empty(ends.size, np.int64)
    ascii_text = (classes[:0x80] == _TEXT).astype(np.uint8)
    written = 0
    at = 0
    for document in range(ends.size):
        end = ends[document]
        document_start = written
        while at < end:  # a line
            line_start = written
            inked = written  # end of the line without its last white space
            has_text = False
            while at < end:
                # Words of ASCII with one space between two: most of most corpora, copied at once.
                after_space = written == line_start or written > inked
                run = at
                letters = np.uint8(0)
                while run < end:
                    byte = raw[run]
                    if byte == 0x20:
                        if after_space:
                            break
                        after_space = True
                    elif 0x20 < byte < 0x7F:
                        letters |= ascii_text[byte]
                        after_space = False
                    else:
                        break
                    run += 1
                if run > at:
                    out[written : written + run - at] = raw[at:run]
                    written += run - at
                    inked = written - 1 if raw[run - 1] == 0x20 else written
                    has_text |= letters != 0
                    at = run
                    continue
                point, width = decode(raw, at)
                kind = classes[point]
                if kind == _RETURN:
                    if at + 1 < end and raw[at + 1] == 0x0A:
                        counts[_RETURNS_OUT] += 1
                        at += 1
                        continue
                    kind = _SEPARATOR
                at += width
                if kind == _LINE_FEED:
                    break
                if (kind == _CONTROL and remove_control) or (
                    kind == _ZERO_WIDTH and remove_zero_width
                ):
                    counts[_CONTROLS_OUT if kind == _CONTROL else _ZERO_WIDTHS_OUT] += 1
                    continue
                if kind == _SEPARATOR or (kind == _SPACE and collapse_white_space):
                    counts[_SEPARATED] += point != 0x20
                    out[written] = 0x20
                    width = 1
                else:
                    for index in range(width):
                        out[written + index] = raw[at - width + index]
                if kind in (_SEPARATOR, _SPACE):
                    if collapse_white_space and written == inked:
                        # A first space after text stands; at a line's start none does.
                        if written == line_start:
                            counts[_SPACES_OUT] += 1
                            continue
                        written += 1
                    elif collapse_white_space:
                        counts[_SPACES_OUT] += 1
                    else:
                        written += width
                    continue
                written += width
                inked = written
                has_text = has_text or kind == _TEXT
            if inked < written:
                counts[_SPACES_OUT] += written - inked
                written = inked
            if written > line_start and drop_symbol_lines and not has_text:
                counts[_LINES_OUT] += 1
                counts[_BYTES_OUT] += written - line_start
                written = line_start
            if written > line_start:
                out[written] = 0x0A
                written += 1
        if written > document_start:
            out_ends[document] = written - 1  # the last line's feed is the document's
        else:
            out[written] = 0x0A
            out_ends[document] = written
            written += 1
    return out[:written], out_ends
