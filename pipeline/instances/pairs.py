"""Pairs of segments: next sentence prediction (NSP) and sentence order prediction (SOP)."""

from __future__ import annotations

from collections.abc import Sequence

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.instances.documents import EncodedDocuments
from pipeline.instances.plan import SegmentPlan
from pipeline.keyed_random import below, philox

_SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
_COIN = np.uint32(1 << 31)


def plan_pairs(
    documents: EncodedDocuments,
    *,
    key: np.uint64,
    repetitions: Sequence[int],
    max_seq_length: int,
    short_seq_prob: float,
    sentence_order: bool,
) -> SegmentPlan:
    """Plan NSP pairs as Devlin et al. 2019 (A.2) and their released code do, or SOP pairs.

    Each document draws a target length: max_seq_length - 3 tokens, or with `short_seq_prob` a
    uniform one from 2 up. Sentences are gathered into a chunk until it reaches the target; A is
    a random prefix of the chunk; B is the rest (label 0), or with probability 1/2 (label 1)
    sentences of another document from a random one on, and the rest opens the next chunk.
    A pair above max_seq_length loses one token at a time from the longer segment, at its front
    or back at random.

    With `sentence_order` (Lan et al. 2020, 3.1) both segments are always the chunk's: label 0 in
    their order, label 1 swapped, a fair coin. No random document is ever drawn.

    One rule is ours. The released codes label every chunk of one sentence random, so that a long
    A, or an A that ends its document, betrays its label, and more than half of the labels are
    random. Here a chunk has at least two sentences: one that reaches the target alone takes its
    successor with it, and one left alone at the end of its document makes no pair (counted in
    `tokens_unpaired`). So every label is a fair coin, whatever the chunk looks like.

    The other document is never a copy of A's own. With fewer than two different documents that
    have tokens there is no random B: all NSP labels are 0.
    """
    # At most one instance a sentence. Pages that are never written take no memory.
    capacity = (documents.sentence_offsets.size - 1) * len(repetitions)
    spans = np.empty((capacity, 4), dtype=np.int64)
    labels = np.empty(capacity, dtype=np.int8)
    order = np.lexsort((documents.document_hashes, documents.originals))
    ordered = documents.originals[order]
    first_copy = np.searchsorted(ordered, documents.originals)
    copies = np.searchsorted(ordered, documents.originals, side="right") - first_copy
    made = used = borrowed = truncated = unpaired = 0
    for repetition in repetitions:
        counts = _plan_pairs(
            documents.sentence_offsets,
            documents.document_offsets,
            documents.document_hashes,
            order,
            first_copy,
            copies,
            key,
            np.uint32(repetition),
            np.int64(max_seq_length - _SPECIAL_TOKENS),
            np.uint64(round(short_seq_prob * (1 << 32))),
            sentence_order,
            spans[made:],
            labels[made:],
        )
        made += counts[0]
        used = counts[1]
        borrowed += counts[2]
        truncated += counts[3]
        unpaired += counts[4]
    return SegmentPlan(
        segments=spans[:made].reshape(-1, 2),
        segment_offsets=2 * np.arange(made + 1, dtype=np.int64),
        pair_labels=labels[:made],
        documents_used=used,
        tokens_borrowed=borrowed,
        tokens_truncated=truncated,
        tokens_unpaired=unpaired,
    )


@nb.njit(cache=True, nogil=True)
def _plan_pairs(
    sentence_offsets: NDArray[np.int64],
    document_offsets: NDArray[np.int64],
    document_hashes: NDArray[np.uint64],
    order: NDArray[np.int64],
    first_copy: NDArray[np.int64],
    copies: NDArray[np.int64],
    key: np.uint64,
    stream: np.uint32,
    max_tokens: np.int64,
    short_threshold: np.uint64,
    sentence_order: bool,
    spans: NDArray[np.int64],
    labels: NDArray[np.int8],
) -> tuple[int, int, int, int, int]:
    """Fill `spans` (start and end of A and of B in ids) and `labels`; return the counts.

    `order` lists the documents by hash, those of one text together: `first_copy` is where those of
    a document's text begin there, `copies` how many they are. A document's draws are counted in
    blocks of four words: one for its target length, then for each instance one of (split,
    label, other document, its first sentence) and one for every 128 tokens truncated.
    """
    instances = 0
    used = 0
    borrowed = 0
    truncated = 0
    unpaired = 0
    for document in range(document_hashes.size):
        identity = document_hashes[document]
        begin = document_offsets[document]
        last = document_offsets[document + 1]
        if last - begin >= 2:
            used += 1
        words = philox(key, np.uint32(0), stream, identity)
        block = np.uint32(1)
        others = order.size - copies[document]
        target = max_tokens
        if np.uint64(words[0]) < short_threshold:
            target = 2 + np.int64(below(words[1], np.uint32(max_tokens - 1)))
        while last - begin >= 2:
            end = begin + 2
            while end < last and sentence_offsets[end] - sentence_offsets[begin] < target:
                end += 1
            words = philox(key, block, stream, identity)
            block = np.uint32(block + 1)
            split = begin + 1 + np.int64(below(words[0], np.uint32(end - begin - 1)))
            first_start = sentence_offsets[begin]
            first_end = sentence_offsets[split]
            if not sentence_order and others > 0 and words[1] < _COIN:
                place = np.int64(below(words[2], np.uint32(others)))
                if place >= first_copy[document]:
                    place += copies[document]
                other = order[place]
                other_end = document_offsets[other + 1]
                start = document_offsets[other]
                start += np.int64(below(words[3], np.uint32(other_end - start)))
                stop = start + 1
                wanted = target - (first_end - first_start)
                while (
                    stop < other_end and sentence_offsets[stop] - sentence_offsets[start] < wanted
                ):
                    stop += 1
                labels[instances] = 1
                borrowed += sentence_offsets[stop] - sentence_offsets[start]
                begin = split
            else:
                start = split
                stop = end
                labels[instances] = 0
                begin = end
            second_start = sentence_offsets[start]
            second_end = sentence_offsets[stop]
            if sentence_order and words[1] < _COIN:
                labels[instances] = 1
                first_start, second_start = second_start, first_start
                first_end, second_end = second_end, first_end

            surplus = (first_end - first_start) + (second_end - second_start) - max_tokens
            for cut in range(surplus):
                if cut & 127 == 0:
                    words = philox(key, block, stream, identity)
                    block = np.uint32(block + 1)
                at_front = (words[(cut >> 5) & 3] >> np.uint32(cut & 31)) & np.uint32(1)
                if first_end - first_start > second_end - second_start:
                    first_start += at_front
                    first_end -= 1 - at_front
                else:
                    second_start += at_front
                    second_end -= 1 - at_front
            truncated += max(surplus, 0)

            spans[instances, 0] = first_start
            spans[instances, 1] = first_end
            spans[instances, 2] = second_start
            spans[instances, 3] = second_end
            instances += 1
        unpaired += sentence_offsets[last] - sentence_offsets[begin]
    return instances, used, borrowed, truncated, unpaired
