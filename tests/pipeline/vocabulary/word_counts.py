"""Word counts and rules that several tests of the vocabulary use."""

from __future__ import annotations

import functools

import pyarrow as pa

from pipeline.vocabulary import NormalizationTable, TextRules


@functools.cache
def uncased() -> NormalizationTable:
    return NormalizationTable.build(TextRules())


def texts(rows: list[str]) -> pa.LargeStringArray:
    return pa.array(rows, pa.large_string())


def counts_of(words: dict[str, int]) -> pa.Table:
    counts = pa.array(list(words.values()), pa.int64())
    return pa.table({"word": texts(list(words)), "count": counts})
