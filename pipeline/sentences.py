"""Sentence boundaries by ICU's rules (UAX #29 with the locale's tailoring), as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numba as nb
import numpy as np
import pyarrow as pa
from icu4py.breakers import SentenceBreaker
from numpy.typing import NDArray

from pipeline.cleaning import CleanedTexts

# Text that ICU is given at a time, in windows that begin at a sentence: memory does not grow with
# a document.
_WINDOW_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class Sentences:
    """The sentences of some documents, flat."""

    values: NDArray[np.uint8]
    """UTF-8 of all sentences, back to back."""
    offsets: NDArray[np.int64]
    """[S + 1], byte at which each sentence begins."""
    document_offsets: NDArray[np.int64]
    """[D + 1], sentence at which each document begins."""
    paragraphs: NDArray[np.uint32]
    """[S], line of its document that each sentence stands in."""

    def as_lists(self) -> pa.LargeListArray:
        """Return large_list<large_string>, one list a document, over the same memory."""
        values = pa.LargeStringArray.from_buffers(
            len(self.offsets) - 1, pa.py_buffer(self.offsets), pa.py_buffer(self.values)
        )
        return pa.LargeListArray.from_arrays(self.document_offsets, values)

    def paragraph_lists(self) -> pa.LargeListArray:
        """Return large_list<uint32>: the line of each sentence, one list a document."""
        return pa.LargeListArray.from_arrays(self.document_offsets, pa.array(self.paragraphs))


def split_sentences(texts: CleanedTexts, locale: str) -> Sentences:
    """Split documents into sentences.

    A line feed always ends a sentence. White space around a sentence is dropped and nothing
    else: the sentences of a document, joined, are its text apart from white space. A sentence
    that holds only white space is no sentence.
    """
    return _gather(texts.utf8, _boundaries(texts, locale), texts.ends)


def lines_as_sentences(texts: CleanedTexts) -> Sentences:
    """Take every line of text that is split already for a sentence."""
    ends = np.flatnonzero(texts.utf8 == 0x0A) + 1
    return _gather(texts.utf8, ends, texts.ends)


def _boundaries(texts: CleanedTexts, locale: str) -> NDArray[np.int64]:
    """Return the byte at which each of ICU's segments ends."""
    rules = f"{locale}@ss=standard"  # suppressions: no break after the locale's abbreviations
    utf8 = texts.utf8
    found: list[NDArray[np.int64]] = []
    start = 0
    size = _WINDOW_BYTES
    while start < utf8.size:
        end = _character_start(utf8, start + size)
        window = utf8[start:end].tobytes().decode()
        segments = SentenceBreaker(window, rules).segments()
        # Ends of (start, end) in UTF-16 code units, as ICU counts; no loop of ours over them.
        units = np.fromiter(chain.from_iterable(segments), dtype=np.int64)[1::2]
        if end < utf8.size:
            # A rule may look ahead as far as the next sentence mark: the last boundary before the
            # window's end could be another with the text that follows.
            units = units[:-2]
            if units.size == 0:
                size *= 2
                continue
        ends = units if window.isascii() else _positions(utf8[start:end], units)
        found.append(start + ends)
        start += int(ends[-1])
        size = _WINDOW_BYTES
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _character_start(utf8: NDArray[np.uint8], at: int) -> int:
    """Return the first byte from `at` on that begins a character, the end if there is none."""
    while at < utf8.size and utf8[at] & 0xC0 == 0x80:
        at += 1
    return min(at, utf8.size)


@nb.njit(cache=True)
def _positions(utf8: NDArray[np.uint8], units: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes before each position that is given in UTF-16 code units."""
    positions = np.empty(units.size, np.int64)
    unit = 0
    byte = 0
    for index in range(units.size):
        while unit < units[index]:
            first = utf8[byte]
            width = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            byte += width
            unit += 2 if width == 4 else 1
        positions[index] = byte
    return positions


@nb.njit(cache=True, inline="always")
def _space_width(utf8: NDArray[np.uint8], at: int) -> int:
    """Return the bytes of the white space character at `at`, 0 if it is none."""
    first = utf8[at]
    if first < 0x80:
        return 1 if first == 0x20 or 0x09 <= first <= 0x0D else 0
    if first == 0xC2:  # U+0085, U+00A0
        return 2 if utf8[at + 1] == 0x85 or utf8[at + 1] == 0xA0 else 0
    if first == 0xE1:  # U+1680
        return 3 if utf8[at + 1] == 0x9A and utf8[at + 2] == 0x80 else 0
    if first == 0xE2 and utf8[at + 1] == 0x80:  # U+2000 to 200A, 2028, 2029, 202F
        last = utf8[at + 2]
        return 3 if last <= 0x8A or last == 0xA8 or last == 0xA9 or last == 0xAF else 0
    if first == 0xE2:  # U+205F
        return 3 if utf8[at + 1] == 0x81 and utf8[at + 2] == 0x9F else 0
    if first == 0xE3:  # U+3000
        return 3 if utf8[at + 1] == 0x80 and utf8[at + 2] == 0x80 else 0
    return 0


@nb.njit(cache=True)
def _trimmed(utf8: NDArray[np.uint8], start: int, end: int) -> tuple[int, int]:
    """Return [start, end) without white space at either side; empty if there is nothing else."""
    while start < end:
        width = _space_width(utf8, start)
        if width == 0:
            break
        start += width
    while end > start:
        last = end - 1
        while utf8[last] & 0xC0 == 0x80:
            last -= 1
        if _space_width(utf8, last) == 0:
            break
        end = last
    return start, end


@nb.njit(cache=True)
def _gather_flat(
    utf8: NDArray[np.uint8], ends: NDArray[np.int64], document_ends: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]:
    """Copy each trimmed segment that is not empty; see `Sentences` for what is returned."""
    values = np.empty(utf8.size, np.uint8)
    offsets = np.zeros(ends.size + 1, np.int64)
    document_offsets = np.zeros(document_ends.size + 1, np.int64)
    paragraphs = np.empty(ends.size, np.uint32)
    written = 0
    sentences = 0
    document = 0
    paragraph = 0
    segment_start = 0
    for segment in range(ends.size):
        start, end = _trimmed(utf8, segment_start, ends[segment])
        while document < document_ends.size - 1 and segment_start > document_ends[document]:
            document += 1
            document_offsets[document] = sentences
            paragraph = 0
        if end > start:
            values[written : written + end - start] = utf8[start:end]
            written += end - start
            paragraphs[sentences] = paragraph
            sentences += 1
            offsets[sentences] = written
        # ICU ends a segment at every line feed, so that one is a segment's last byte or none of it.
        if utf8[ends[segment] - 1] == 0x0A:
            paragraph += 1
        segment_start = ends[segment]
    while document < document_ends.size:
        document += 1
        document_offsets[document] = sentences
    return values[:written], offsets[: sentences + 1], document_offsets, paragraphs[:sentences]


def _gather(
    utf8: NDArray[np.uint8], ends: NDArray[np.int64], document_ends: NDArray[np.int64]
) -> Sentences:
    return Sentences(*_gather_flat(utf8, ends, document_ends))
