"""Counting words: each partition its own, then a reduce over hash buckets."""

from __future__ import annotations

from collections.abc import Sequence

import numba as nb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.normalization import NormalizationTable
from pipeline.pretokenize import WordInterner, text_buffers

COUNTS_SCHEMA = pa.schema([("word", pa.large_string()), ("count", pa.int64())])


def count_words(text: pa.LargeStringArray, normalization: NormalizationTable) -> pa.Table:
    """Return {word: large_string, count: int64} of the normalised text, by the words' bytes.

    Raises InputError for a null row.
    """
    interner = WordInterner(normalization, pa.array([], pa.large_string()))
    counts = np.zeros(0, np.int64)
    for stream in interner.walk(text):
        counts = np.concatenate((counts, np.zeros(len(interner) - len(counts), np.int64)))
        _add_counts(stream.numbers, counts)
    table = pa.table([interner.words(), pa.array(counts)], schema=COUNTS_SCHEMA)
    return table.sort_by("word")


def split_counts(counts: pa.Table, buckets: int) -> list[pa.Table]:
    """Return `buckets` tables; a word's bucket depends on its bytes alone."""
    if buckets < 1:
        raise ValueError(f"buckets = {buckets}: must be at least 1")
    text, offsets = text_buffers(_words(counts))
    bucket = np.empty(counts.num_rows, np.int64)
    _assign_buckets(text, offsets, buckets, bucket)
    return [counts.filter(pa.array(bucket == index)) for index in range(buckets)]


def merge_counts(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the summed counts of all tables, most frequent first, then by the words' bytes.

    Raises InputError where a sum may exceed 2**63 - 1 or a count is below 1.
    """
    merged = pa.concat_tables([COUNTS_SCHEMA.empty_table(), *tables]).cast(COUNTS_SCHEMA)
    check_counts(merged)
    summed = merged.group_by("word", use_threads=False).aggregate([("count", "sum")])
    summed = summed.rename_columns({"count_sum": "count"}).select(["word", "count"])
    del merged, tables
    order = [("count", "descending"), ("word", "ascending")]
    summed = summed.sort_by(order).cast(COUNTS_SCHEMA).combine_chunks()
    # Arrow would keep it: of 10 million words 1.4 GB, while the trainer needs memory.
    pa.default_memory_pool().release_unused()
    return summed


def check_counts(counts: pa.Table) -> None:
    """Raise InputError for a count below 1 or a total that 64 bits do not hold."""
    values = counts["count"].to_numpy()
    if len(values) and values.min() < 1:
        row = int(values.argmin())
        word = counts["word"][row].as_py()
        raise InputError(f"word counts: {word!r} has count {values[row]}: must be at least 1")
    # Exact: the halves of 2**31 rows of 2**32 fit 64 bits.
    high, low = int((values >> 32).sum()), int((values & 0xFFFFFFFF).sum())
    total = (high << 32) + low
    if total >= 1 << 63:
        raise InputError(
            f"word counts: {total} words in all: more than 2**63 - 1; lower the corpus weights"
        )


def _words(counts: pa.Table) -> pa.LargeStringArray:
    words = counts["word"].combine_chunks()
    return words.chunk(0) if isinstance(words, pa.ChunkedArray) else words


@nb.njit(cache=True, _nrt=False)
def _add_counts(numbers: NDArray[np.int32], counts: NDArray[np.int64]) -> None:
    for number in numbers:
        counts[number] += 1


@nb.njit(cache=True, _nrt=False)
def _assign_buckets(
    text: NDArray[np.uint8], offsets: NDArray[np.int64], buckets: int, bucket: NDArray[np.int64]
) -> None:
    """FNV-1a of each word's bytes (Fowler, Noll, Vo), high bits modulo `buckets`."""
    for row in range(bucket.size):
        digest = np.uint64(0xCBF29CE484222325)
        for position in range(offsets[row], offsets[row + 1]):
            digest = (digest ^ np.uint64(text[position])) * np.uint64(0x100000001B3)
        bucket[row] = np.int64(digest >> np.uint64(33)) % buckets
