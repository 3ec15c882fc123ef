"""Paragraphs that stand in the corpus more than once: one stays, whatever the splits."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cleaning import clean
from pipeline.config import CleaningConfig, DocumentsConfig, SourceConfig
from pipeline.corpus import RawDocument
from pipeline.documents import RUN_SCHEMA, Chunk, Partitions, duplicates, split_documents
from pipeline.merge import Losses, merge_rows
from pipeline.paragraphs import PARAGRAPH_SCHEMA, fingerprints, repeated

SOURCE = SourceConfig(name="s", format="lines", path="unused")
CONFIG = DocumentsConfig(
    sources=(SOURCE,), cleaning=CleaningConfig(deduplicate_paragraphs=8), held_out_fraction=0.0
)
FOOTER = "All rights reserved. Do not copy."


def chunks(texts: Sequence[str], first: int = 0) -> list[Chunk]:
    raw = [RawDocument("f", first + number, text) for number, text in enumerate(texts)]
    return list(split_documents(raw, 0, CONFIG, Partitions(1, 0), 0, Counter()))


def merged(splits: Sequence[Sequence[str]]) -> tuple[dict[str, list[str]], Counter[str]]:
    """Sentences by document key after every pass, and what the merge counted."""
    read = []
    first = 0
    for texts in splits:
        read += chunks(texts, first)
        first += len(texts)
    runs = [RUN_SCHEMA.empty_table(), *(one.documents for one in read)]
    dropped = duplicates(runs)
    parts = [PARAGRAPH_SCHEMA.empty_table(), *(one.paragraphs for one in read)]
    losses = Losses(1)
    table = merge_rows(
        runs,
        [dropped],
        [repeated(parts, [dropped])],
        [1 << 32],
        losses,
        train_partitions=1,
        seed=0,
    )
    (counts,) = losses.by_source
    return dict(
        zip(table["document_key"].to_pylist(), table["sentences"].to_pylist(), strict=True)
    ), counts


def test_a_repeated_paragraph_stays_once_and_short_ones_always() -> None:
    texts = [f"Text number {n}. More.\nshort\n{FOOTER}" for n in range(6)]
    found, counts = merged([texts])
    assert len(found) == 6
    assert sum("Do not copy." in one for one in found.values()) == 1
    assert all("short" in one for one in found.values())
    assert counts == {"repeated_paragraphs_dropped": 5}


def test_a_document_of_repeated_paragraphs_alone_is_dropped_and_counted() -> None:
    found, counts = merged([[f"Own text here.\n{FOOTER}", FOOTER, f"{FOOTER}\n{FOOTER}"]])
    assert sum(one.count("Do not copy.") for one in found.values()) == 1
    assert len(found) + counts["dropped_repeated_paragraphs"] == 3
    assert counts["repeated_paragraphs_dropped"] == 3


def test_a_paragraph_is_not_lost_with_a_duplicate_document() -> None:
    same = f"The same document.\n{FOOTER}"
    for number in range(8):
        found, counts = merged([[same, f"Another one {number}.\n{FOOTER}", same]])
        assert sum("Do not copy." in one for one in found.values()) == 1
        assert sum("The same document." in one for one in found.values()) == 1
        assert counts["dropped_duplicate"] == 1


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, 24), max_size=5), order=st.randoms(use_true_random=False))
def test_the_splits_do_not_matter(cuts: list[int], order: object) -> None:
    lines = ["First long line.", "Second long line.", "Third long line.", "tiny"]
    texts = [f"{lines[n % 4]}\n{lines[n % 3]}\nOwn line {n % 9}." for n in range(24)]
    bounds = [0, *sorted(cuts), 24]
    splits = [texts[start:end] for start, end in itertools.pairwise(bounds)]
    assert merged(splits) == merged([texts])


@given(st.lists(st.text("abé\n ", max_size=30), max_size=6), st.integers(1, 9))
def test_every_long_enough_line_has_a_fingerprint_and_equal_lines_the_same(
    texts: list[str], minimum: int
) -> None:
    cleaned = clean(texts, CleaningConfig(), Counter())
    documents = pa.table(
        {
            "document_hash": pa.array([bytes([n]) * 16 for n in range(len(texts))], pa.binary(16)),
            "ordinal": pa.array(range(len(texts)), pa.uint32()),
            "partition": pa.array([n % 3 for n in range(len(texts))], pa.uint32()),
            "source": pa.array([0] * len(texts), pa.uint16()),
        }
    )
    table = fingerprints(cleaned, documents, minimum)
    found = [cleaned.utf8[start:end].tobytes().decode() for start, end in cleaned.spans()]
    expected = [
        (number, line_number, line)
        for number, text in enumerate(found)
        for line_number, line in enumerate(text.split("\n"))
        if len(line) >= minimum
    ]
    places = [
        (one[0], number)
        for one, number in zip(
            table["document_hash"].to_pylist(), table["paragraph"].to_pylist(), strict=True
        )
    ]
    assert places == [(number, line) for number, line, _ in expected]
    hashes = table["content_hash"].to_pylist()
    by_line = {line: one for (_, _, line), one in zip(expected, hashes, strict=True)}
    assert [by_line[line] for _, _, line in expected] == hashes
    assert len(set(by_line.values())) == len(by_line)


@pytest.mark.parametrize("at", [0, 7, 8, 30])
def test_one_changed_character_anywhere_changes_the_hash(at: int) -> None:
    line = "x" * 31
    other = f"{line[:at]}y{line[at + 1 :]}"
    cleaned = clean([line, other, line + "x", line[:-1]], CleaningConfig(), Counter())
    documents = pa.table(
        {
            "document_hash": pa.array([b"0" * 16] * 4, pa.binary(16)),
            "ordinal": pa.array(np.zeros(4, np.uint32)),
            "partition": pa.array(np.zeros(4, np.uint32)),
            "source": pa.array(np.zeros(4, np.uint16)),
        }
    )
    assert len(set(fingerprints(cleaned, documents, 8)["content_hash"].to_pylist())) == 4
