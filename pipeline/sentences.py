"""Sentence boundaries by ICU's rules (UAX #29 with the locale's tailoring), as flat arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numba as nb
import numpy as np
import pyarrow as pa
from icu4py.breakers import SentenceBreaker
from numpy.typing import NDArray


def split_sentences(documents: Sequence[str], locale: str) -> pa.LargeListArray:
    """Split documents into sentences: large_list<large_string>, one list a document.

    A line feed always ends a sentence. White space around a sentence is dropped and nothing
    else: the sentences of a document, joined, are its text apart from white space. A sentence
    that holds only white space is no sentence.
    """
    # One breaker for many documents; the line feed between two is a boundary of its own.
    text = "\n".join(documents)
    locale = f"{locale}@ss=standard"  # suppressions: no break after the locale's abbreviations
    segments = SentenceBreaker(text, locale).segments()  # in UTF-16 code units, as ICU counts
    ends = np.fromiter((end for _, end in segments), dtype=np.int64)
    code_points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    lengths = np.fromiter(map(len, documents), dtype=np.int64, count=len(documents))
    document_ends = np.cumsum(lengths + 1)  # one past the line feed after each document
    utf8 = np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
    values, offsets, counts = _gather(code_points, utf8, ends, document_ends)
    sentences = pa.LargeStringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(values)
    )
    return pa.LargeListArray.from_arrays(np.concatenate(([0], np.cumsum(counts))), sentences)


@nb.njit(cache=True, inline="always")
def _is_space(point: int) -> bool:
    return (
        point == 32
        or 9 <= point <= 13
        or point == 0xA0
        or point == 0x1680
        or 0x2000 <= point <= 0x200A
        or point == 0x2028
        or point == 0x2029
        or point == 0x202F
        or point == 0x205F
        or point == 0x3000
        or point == 0x85
    )


@nb.njit(cache=True, inline="always")
def _width(point: int) -> int:
    return 1 if point < 0x80 else 2 if point < 0x800 else 3 if point < 0x10000 else 4


@nb.njit(cache=True)
def _gather(
    code_points: NDArray[np.uint32],
    utf8: NDArray[np.uint8],
    ends: NDArray[np.int64],
    document_ends: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Copy each trimmed, non-empty segment: (UTF-8 bytes, offsets, sentences a document)."""
    values = np.empty(utf8.size, np.uint8)
    offsets = np.zeros(ends.size + 1, np.int64)
    counts = np.zeros(document_ends.size, np.int64)
    position = 0  # code points walked
    unit = 0  # their UTF-16 code units
    byte = 0  # their UTF-8 bytes
    written = 0
    sentences = 0
    document = 0
    for segment in range(ends.size):
        first_byte = -1
        last_byte = -1
        start = position
        while unit < ends[segment]:
            point = code_points[position]
            width = _width(point)
            if not _is_space(point):
                if first_byte < 0:
                    first_byte = byte
                last_byte = byte + width
            byte += width
            unit += 2 if point >= 0x10000 else 1
            position += 1
        while document < document_ends.size - 1 and start >= document_ends[document]:
            document += 1
        if first_byte >= 0:
            for index in range(first_byte, last_byte):
                values[written] = utf8[index]
                written += 1
            sentences += 1
            offsets[sentences] = written
            counts[document] += 1
    return values[:written], offsets[: sentences + 1], counts
