"""Rows of whole sentences, no pairs: full_sentences, doc_sentences (Liu et al. 2019, 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.contract import Objective
from pipeline.instances.documents import EncodedDocuments
from pipeline.instances.plan import SegmentPlan
from pipeline.keyed_random import below, draw

_SPECIAL_TOKENS = 2  # [CLS] and the [SEP] of the one segment that a row has at least


def plan_packed(
    documents: EncodedDocuments,
    *,
    key: np.uint64,
    repetitions: Sequence[int],
    max_seq_length: int,
    objective: Objective,
) -> SegmentPlan:
    """Plan rows of whole sentences: each takes the sentences that fit whole, in their order.

    full_sentences: a row goes on into the next document, with a [SEP] between the two; documents
    follow each other in keyed order, another one in every repetition.
    doc_sentences: a row ends with its document. In repetitions after the first a document's
    first row is shortened, to a uniform number of tokens, so that rows begin elsewhere.
    sentence: a row is one sentence, the same one in every repetition.

    A sentence longer than a row is cut into rows of its own; its rest counts as a sentence, so
    that no token is lost. All of a row is one segment for the model: token_type_ids are 0.
    """
    count = documents.document_hashes.size
    tokens = int(documents.sentence_offsets[-1] - documents.sentence_offsets[0])
    # At most one segment a sentence, and one more for every row that a long sentence fills. Pages
    # that are never written take no memory.
    capacity = documents.sentence_offsets.size + tokens // (max_seq_length - _SPECIAL_TOKENS)
    segments = np.empty((capacity * len(repetitions), 2), dtype=np.int64)
    segment_offsets = np.zeros(capacity * len(repetitions) + 1, dtype=np.int64)
    draws = np.empty(count, dtype=np.uint32)
    used = rows = 0
    for repetition in repetitions:
        order = np.arange(count, dtype=np.int64)
        _draw_each(key, np.uint32(repetition), documents.document_hashes, draws)
        if objective == "full_sentences":
            order = np.lexsort((documents.document_hashes, draws)).astype(np.int64)
        used, rows = _plan_rows(
            documents.sentence_offsets,
            documents.document_offsets,
            order,
            draws,
            np.int64(max_seq_length),
            objective == "full_sentences",
            objective == "sentence",
            objective == "doc_sentences" and repetition > 0,
            used,
            rows,
            segments,
            segment_offsets,
        )
    return SegmentPlan(
        segments=segments[:used],
        segment_offsets=segment_offsets[: rows + 1],
        pair_labels=None,
        documents_used=count,
    )


@nb.njit(cache=True, nogil=True)
def _draw_each(
    key: np.uint64,
    stream: np.uint32,
    document_hashes: NDArray[np.uint64],
    draws: NDArray[np.uint32],
) -> None:
    for document in range(draws.size):
        draws[document] = draw(key, np.uint32(0), stream, document_hashes[document])


@nb.njit(cache=True, nogil=True)
def _plan_rows(
    sentence_offsets: NDArray[np.int64],
    document_offsets: NDArray[np.int64],
    order: NDArray[np.int64],
    draws: NDArray[np.uint32],
    max_seq_length: np.int64,
    across_documents: bool,
    one_sentence: bool,
    shorten_first: bool,
    used: int,
    rows: int,
    segments: NDArray[np.int64],
    segment_offsets: NDArray[np.int64],
) -> tuple[int, int]:
    """Go on after `used` segments and `rows` rows; return how many there are then.

    A row is open while `length` > 1: it holds [CLS], and so many tokens with their [SEP]s.
    """
    room = max_seq_length - _SPECIAL_TOKENS
    length = np.int64(1)
    for document in order:
        limit = max_seq_length
        if shorten_first:
            limit = _SPECIAL_TOKENS + 1 + np.int64(below(draws[document], np.uint32(room)))
        goes_on = False  # whether the last segment is of this document
        for sentence in range(document_offsets[document], document_offsets[document + 1]):
            start = sentence_offsets[sentence]
            end = sentence_offsets[sentence + 1]
            added = end - start + (0 if goes_on else 1)
            if length > 1 and length + added > limit:
                rows += 1
                segment_offsets[rows] = used
                length = np.int64(1)
                goes_on = False
                limit = max_seq_length
            while end - start > room:
                segments[used, 0] = start
                segments[used, 1] = start + room
                start += room
                used += 1
                rows += 1
                segment_offsets[rows] = used
                limit = max_seq_length
            if goes_on:
                segments[used - 1, 1] = end
                length += end - start
            else:
                segments[used, 0] = start
                segments[used, 1] = end
                used += 1
                length += end - start + 1
                goes_on = True
            if one_sentence:
                rows += 1
                segment_offsets[rows] = used
                length = np.int64(1)
                goes_on = False
        if not across_documents and length > 1:
            rows += 1
            segment_offsets[rows] = used
            length = np.int64(1)
    if length > 1:
        rows += 1
        segment_offsets[rows] = used
    return used, rows
