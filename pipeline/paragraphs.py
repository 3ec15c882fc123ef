"""Paragraphs (lines of a document) that stand in the corpus more than once: all but one go."""

from __future__ import annotations

from collections.abc import Iterable

import numba as nb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.cleaning import CleanedTexts

PARAGRAPH_SCHEMA = pa.schema(
    [
        pa.field("content_hash", pa.binary(16), nullable=False),
        pa.field("document_hash", pa.binary(16), nullable=False),
        pa.field("paragraph", pa.uint32(), nullable=False),  # line of the document
        pa.field("ordinal", pa.uint32(), nullable=False),  # the document's among its split's
        pa.field("partition", pa.uint32(), nullable=False),
        pa.field("source", pa.uint16(), nullable=False),
    ]
)


def fingerprints(texts: CleanedTexts, documents: pa.Table, minimum_characters: int) -> pa.Table:
    """Return a row of PARAGRAPH_SCHEMA for each line of at least `minimum_characters`.

    `documents` has the columns of a run table, a row a document of `texts`.
    """
    hashes, rows, paragraphs = _hash_lines(texts.utf8, texts.ends, minimum_characters)
    of_document = ["document_hash", "ordinal", "partition", "source"]
    taken = documents.select(of_document).take(pa.array(rows))
    contents = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), rows.size, [None, pa.py_buffer(hashes)]
    )
    columns = {"content_hash": contents, "paragraph": pa.array(paragraphs)}
    columns |= {name: taken[name] for name in taken.column_names}
    return pa.table([columns[name] for name in PARAGRAPH_SCHEMA.names], schema=PARAGRAPH_SCHEMA)


def repeated(tables: Iterable[pa.Table], dropped_documents: Iterable[pa.Table]) -> pa.Table:
    """Return the rows whose text stands in another one too, but for the first of each text.

    First by document hash, then by line. Rows of documents that are dropped do not count.
    """
    table = pa.concat_tables(tables)
    for dropped in dropped_documents:
        gone = pc.is_in(table["document_hash"], value_set=dropped["document_hash"].combine_chunks())
        table = table.filter(pc.invert(gone))
    order = [(name, "ascending") for name in ("content_hash", "document_hash", "paragraph")]
    table = table.sort_by(order)
    contents = table["content_hash"].combine_chunks()
    if len(contents) < 2:
        return table.slice(0, 0)
    same = pc.equal(contents.slice(1), contents.slice(0, len(contents) - 1))
    return table.filter(pa.concat_arrays([pa.array([False]), same]))


def without(table: pa.Table, unwanted: Iterable[pa.Table]) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return a run table without these paragraphs, and the row each one was in.

    Documents that have no sentence left stay, empty.
    """
    parts = pa.concat_tables([PARAGRAPH_SCHEMA.empty_table(), *unwanted])
    rows = pc.index_in(
        parts["document_hash"], value_set=table["document_hash"].combine_chunks()
    ).combine_chunks()
    there = np.asarray(rows.is_valid())
    if not there.any():
        return table, np.zeros(0, np.int64)
    rows_of = np.asarray(rows.drop_null()).astype(np.int64)
    lines = np.asarray(parts["paragraph"])[there].astype(np.int64)
    sentences = table["sentences"].combine_chunks()
    paragraphs = table["paragraphs"].combine_chunks()
    offsets = np.asarray(sentences.offsets).astype(np.int64)
    base = int(offsets[0])
    counts = np.diff(offsets)
    of_row = np.repeat(np.arange(table.num_rows), counts)
    of_line = np.asarray(paragraphs.flatten()).astype(np.int64)
    stride = int(max(of_line.max(initial=0), lines.max())) + 1
    gone = np.isin(of_row * stride + of_line, rows_of * stride + lines)
    kept = pa.array(~gone)
    kept_counts = np.bincount(of_row[~gone], minlength=table.num_rows)
    new_offsets = np.concatenate(([0], np.cumsum(kept_counts)))
    values = sentences.values.slice(base, int(offsets[-1]) - base).filter(kept)
    lists = pa.LargeListArray.from_arrays(new_offsets, values)
    line_lists = pa.LargeListArray.from_arrays(new_offsets, paragraphs.flatten().filter(kept))
    for name, column in (("sentences", lists), ("paragraphs", line_lists)):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), column)
    return table, rows_of


@nb.njit(cache=True, inline="always")
def _mix(value: np.uint64) -> np.uint64:
    """Steele et al. 2014, SplitMix64: a bijection of 64 bits."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@nb.njit(cache=True)
def _hash_lines(
    utf8: NDArray[np.uint8], ends: NDArray[np.int64], minimum_characters: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint32]]:
    """Return (128-bit hash [N, 2], document, line) of every line that is long enough.

    Two chains of mixed 8-byte words with different starts; the length begins both.
    """
    limit = utf8.size // max(1, minimum_characters) + 1
    hashes = np.empty((limit, 2), np.uint64)
    documents = np.empty(limit, np.int64)
    paragraphs = np.empty(limit, np.uint32)
    found = 0
    start = 0
    for document in range(ends.size):
        paragraph = 0
        while start <= ends[document]:
            end = start
            characters = 0
            while utf8[end] != 0x0A:
                characters += (utf8[end] & 0xC0) != 0x80
                end += 1
            if characters >= minimum_characters:
                first = _mix(np.uint64(end - start) ^ np.uint64(0x9E3779B97F4A7C15))
                second = _mix(np.uint64(end - start) ^ np.uint64(0xC2B2AE3D27D4EB4F))
                at = start
                while at < end:
                    word = np.uint64(0)
                    for index in range(at, min(at + 8, end)):
                        word = (word << np.uint64(8)) | np.uint64(utf8[index])
                    first = _mix(first ^ word)
                    second = _mix(second + word)
                    at += 8
                hashes[found, 0] = first
                hashes[found, 1] = second
                documents[found] = document
                paragraphs[found] = paragraph
                found += 1
            paragraph += 1
            start = end + 1
    return hashes[:found].copy(), documents[:found], paragraphs[:found]
