"""Rows of whole sentences in plain lists: the rule of full_sentences, doc_sentences, sentence."""

from __future__ import annotations

import numpy as np

from pipeline.derived_keys import derive_key
from pipeline.keyed_random import draw
from tests.pipeline.nsp_reference import CLS, SEP, Built, Documents


def reference_rows(
    documents: Documents, hashes: list[int], objective: str, seed, repetition, max_seq_length
) -> list[list[int]]:
    """The ids of every row, with [CLS] and [SEP]."""
    key = np.uint64(derive_key(seed, "pair"))

    def word(document_hash: int) -> int:
        return int(draw(key, np.uint32(0), np.uint32(repetition), np.uint64(document_hash)))

    room = max_seq_length - 2
    texts = [
        ([sentence for sentence in document if sentence], document_hash)
        for document, document_hash in zip(documents, hashes, strict=True)
    ]
    texts = [one for one in texts if one[0]]
    if objective == "full_sentences":
        texts.sort(key=lambda one: (word(one[1]), one[1]))
    rows: list[list[list[int]]] = []  # rows of segments
    row: list[list[int]] = []

    def size(segments: list[list[int]]) -> int:
        return 1 + sum(len(segment) + 1 for segment in segments)

    def close() -> None:
        nonlocal row
        if row:
            rows.append(row)
        row = []

    for document, document_hash in texts:
        limit = max_seq_length
        if objective == "doc_sentences" and repetition > 0:
            limit = 2 + 1 + (word(document_hash) * room >> 32)
        new_segment = True
        for sentence in document:
            longer = [*row, sentence] if new_segment else [*row[:-1], row[-1] + sentence]
            if row and size(longer) > limit:
                close()
                limit = max_seq_length
                new_segment = True
            rest = sentence
            while len(rest) > room:
                rows.append([rest[:room]])
                rest = rest[room:]
                limit = max_seq_length
            if new_segment:
                row.append(rest)
            else:
                row[-1] = row[-1] + rest
            new_segment = False
            if objective == "sentence":
                close()
                new_segment = True
        if objective != "full_sentences":
            close()
    close()
    return [[CLS, *(token for segment in row for token in [*segment, SEP])] for row in rows]


def rows_of(built: Built) -> list[list[int]]:
    rows = built.rows
    return [
        rows.input_ids[rows.offsets[row] : rows.offsets[row + 1]].tolist()
        for row in range(rows.rows)
    ]
