"""Which spans of the documents' ids make which instance, and how instances are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.instance_rows import InstanceRows
from pipeline.instances.documents import EncodedDocuments
from pipeline.ragged import read_only

_ROWS_AHEAD = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceCounts:
    """What became of the documents and their tokens.

    documents = documents_used + documents_one_sentence + documents_empty, and
    tokens_read + tokens_borrowed = tokens_used + tokens_truncated + tokens_unpaired.
    Documents are counted once, tokens once for each repetition.
    """

    documents: int
    documents_used: int
    """Documents with at least one instance."""
    documents_one_sentence: int
    """Documents without a pair because they have one sentence; under nsp they still serve as
    random B. 0 where the objective has no pairs."""
    documents_empty: int
    """Documents without any token."""
    documents_alone: int
    """Documents with instances under nsp that have no other document beside them to draw a random
    B from, so that B always follows A."""
    tokens_read: int
    """Tokens of the documents."""
    tokens_borrowed: int
    """Tokens read a second time, as the random B of another document, before truncation."""
    tokens_used: int
    """Tokens of the instances, special tokens not counted."""
    tokens_truncated: int
    """Tokens cut from pairs longer than max_seq_length."""
    tokens_unpaired: int
    """Tokens of one-sentence documents and of sentences left alone at a document's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlan:
    """The instances of all repetitions, as in InstancePlan, and what was counted on the way."""

    segments: NDArray[np.int64]
    segment_offsets: NDArray[np.int64]
    pair_labels: NDArray[np.int8] | None
    documents_used: int
    tokens_borrowed: int = 0
    tokens_truncated: int = 0
    tokens_unpaired: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancePlan:
    """I instances before they are written, repetition by repetition, in document order.

    `segments` int64 [G, 2], where each segment starts and ends in the documents' ids;
    `segment_offsets` int64 [I + 1] into the segments; `pair_labels` int8 [I], None where the
    objective has no pairs.
    """

    segments: NDArray[np.int64]
    segment_offsets: NDArray[np.int64]
    pair_labels: NDArray[np.int8] | None
    counts: InstanceCounts

    @property
    def instances(self) -> int:
        """I."""
        return self.segment_offsets.size - 1

    def lengths(self) -> NDArray[np.int64]:
        """Return the tokens of each instance, special tokens included, int64 [I]."""
        ends = np.zeros(self.segments.shape[0] + 1, dtype=np.int64)
        np.cumsum(self.segments[:, 1] - self.segments[:, 0] + 1, out=ends[1:])
        lengths: NDArray[np.int64] = np.diff(ends[self.segment_offsets]) + 1
        return lengths


def write_instances(
    plan: InstancePlan,
    documents: EncodedDocuments,
    order: NDArray[np.int64],
    *,
    cls_id: int,
    sep_id: int,
) -> InstanceRows:
    """Write the instances `order` (int64, indices of the plan's) as rows in that order.

    `documents` are those of the plan. Special tokens count as words of their own.
    """
    row_segments = np.zeros(order.size + 1, dtype=np.int64)
    np.cumsum(np.diff(plan.segment_offsets)[order], out=row_segments[1:])
    segments = np.empty((int(row_segments[-1]), 2), dtype=np.int64)
    offsets = np.zeros(order.size + 1, dtype=np.int64)
    first_segment_length = np.empty(order.size, dtype=np.uint16)
    _gather_segments(
        read_only(plan.segments),
        read_only(plan.segment_offsets),
        read_only(order),
        row_segments,
        plan.pair_labels is not None,
        segments,
        offsets,
        first_segment_length,
    )
    columns: list[NDArray[Any]] = []
    for values, opening, closing in (
        (documents.ids, cls_id, sep_id),
        (documents.word_starts, True, True),
    ):
        if values is None:
            continue
        column = np.empty(int(offsets[-1]), dtype=values.dtype)
        _write_segments(
            read_only(values),
            segments,
            row_segments,
            offsets,
            values.dtype.type(opening),
            values.dtype.type(closing),
            column,
        )
        columns.append(column)
    return InstanceRows(
        input_ids=columns[0],
        offsets=offsets,
        first_segment_length=first_segment_length,
        pair_labels=None if plan.pair_labels is None else plan.pair_labels[order],
        sources=_sources(documents, segments[row_segments[:-1], 0]),
        word_starts=columns[1] if len(columns) > 1 else None,
    )


def _sources(documents: EncodedDocuments, tokens: NDArray[np.int64]) -> NDArray[np.uint16] | None:
    """Return the source of the document that each of these tokens stands in."""
    if documents.sources is None:
        return None
    first_tokens = documents.sentence_offsets[documents.document_offsets[:-1]]
    # Of documents that begin at one token, the last is the one that has it: the others are empty.
    place = np.searchsorted(first_tokens, tokens, side="right") - 1
    found: NDArray[np.uint16] = documents.sources[place]
    return found


@nb.njit(cache=True, nogil=True)
def _gather_segments(
    plan_segments: NDArray[np.int64],
    segment_offsets: NDArray[np.int64],
    order: NDArray[np.int64],
    row_segments: NDArray[np.int64],
    pairs: bool,
    segments: NDArray[np.int64],
    offsets: NDArray[np.int64],
    first_segment_length: NDArray[np.uint16],
) -> None:
    """Fill the rows' segments in their order, where each row ends, and its first segment."""
    for row in range(order.size):
        first = segment_offsets[order[row]]
        at = row_segments[row]
        count = row_segments[row + 1] - at
        length = 1 + count
        for segment in range(count):
            start = plan_segments[first + segment, 0]
            end = plan_segments[first + segment, 1]
            segments[at + segment, 0] = start
            segments[at + segment, 1] = end
            length += end - start
        offsets[row + 1] = offsets[row] + length
        if pairs:
            length = segments[at, 1] - segments[at, 0] + 2
        first_segment_length[row] = length


@nb.njit(cache=True, nogil=True)
def _write_segments(
    values: NDArray[Any],
    segments: NDArray[np.int64],
    row_segments: NDArray[np.int64],
    offsets: NDArray[np.int64],
    opening: Any,
    closing: Any,
    column: NDArray[Any],
) -> Any:
    """Write the opening value of each row, then its segments, each with the closing value.

    Returns a value of no meaning, so that the reads ahead are not left out.
    """
    touched = opening
    rows = offsets.size - 1
    for block in range(0, rows, _ROWS_AHEAD):
        block_end = min(block + _ROWS_AHEAD, rows)
        # Rows come in random order, and a miss of the cache costs more than a segment's copy. These
        # reads wait for nothing, so the processor has many of them under way at a time.
        for segment in range(row_segments[block], row_segments[block_end]):
            touched |= values[segments[segment, 0]]
            touched |= values[segments[segment, 1] - 1]
        for row in range(block, block_end):
            at = offsets[row]
            column[at] = opening
            at += 1
            for segment in range(row_segments[row], row_segments[row + 1]):
                start = segments[segment, 0]
                length = segments[segment, 1] - start
                # A loop: a slice's own bookkeeping costs as much as a short segment's tokens.
                for token in range(length):
                    column[at + token] = values[start + token]
                at += length
                column[at] = closing
                at += 1
    return touched
