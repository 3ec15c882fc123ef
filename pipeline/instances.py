"""Encoded documents to pre-training instances; next sentence prediction (NSP) pairs.

An instance is [CLS] A [SEP] B [SEP], unpadded. Documents and instances are flat arrays of ids
with offsets, so that the loops compile and no Python object exists per token or sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError
from pipeline.keyed_random import below, derive_key, philox
from pipeline.ragged import Ids, check_offsets, read_only

_SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
_COIN = np.uint32(1 << 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedDocuments:
    """The tokens of a partition's documents, sentence by sentence.

    `ids` uint16 or uint32 [T], without special tokens; `sentence_offsets` int64 [S + 1] into
    `ids`; `document_offsets` int64 [D + 1] into the sentences; `document_hashes` uint64 [D],
    each document's identity for random draws. Sentences and documents may be empty.
    """

    ids: Ids
    sentence_offsets: NDArray[np.int64]
    document_offsets: NDArray[np.int64]
    document_hashes: NDArray[np.uint64]

    def __post_init__(self) -> None:
        if self.ids.dtype not in (np.uint16, np.uint32):
            raise ValueError(f"ids are {self.ids.dtype}: must be uint16 or uint32")
        check_offsets("sentence_offsets", self.sentence_offsets, self.ids.size)
        check_offsets("document_offsets", self.document_offsets, self.sentence_offsets.size - 1)
        if self.document_hashes.dtype != np.uint64:
            raise ValueError(f"document_hashes are {self.document_hashes.dtype}: must be uint64")
        if self.document_hashes.size != self.document_offsets.size - 1:
            raise ValueError(
                f"{self.document_hashes.size} document_hashes for "
                f"{self.document_offsets.size - 1} documents: must be one each"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceCounts:
    """What became of the documents and their tokens.

    documents = documents_used + documents_one_sentence + documents_empty, and
    tokens_read + tokens_borrowed = tokens_used + tokens_truncated + tokens_unpaired.
    """

    documents: int
    documents_used: int
    """Documents with at least one instance."""
    documents_one_sentence: int
    """Documents without a pair because they have one sentence; they still serve as random B."""
    documents_empty: int
    """Documents without any token."""
    is_next: int
    random_next: int
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
class Instances:
    """Instances in document order.

    `input_ids` [N], of the documents' dtype; `offsets` int64 [I + 1] into them;
    `first_segment_length` uint16 [I], the tokens of [CLS] A [SEP]; `next_sentence_label`
    int8 [I], 0 where B follows A and 1 where B is random.
    """

    input_ids: Ids
    offsets: NDArray[np.int64]
    first_segment_length: NDArray[np.uint16]
    next_sentence_label: NDArray[np.int8]
    counts: InstanceCounts


def build_nsp_instances(
    documents: EncodedDocuments,
    *,
    seed: int,
    repetition: int,
    max_seq_length: int,
    short_seq_prob: float,
    cls_id: int,
    sep_id: int,
) -> Instances:
    """Build NSP pairs as Devlin et al. 2019 (A.2) and their released code do.

    Each document draws a target length: max_seq_length - 3 tokens, or with `short_seq_prob` a
    uniform one from 2 up. Sentences are gathered into a chunk until it reaches the target; A is
    a random prefix of the chunk; B is the rest (label 0), or with probability 1/2 (label 1)
    sentences of another document from a random one on, and the rest opens the next chunk.
    A pair above max_seq_length loses one token at a time from the longer segment, at its front
    or back at random.

    One rule is ours. The released code labels every chunk of one sentence random, so that a long
    A, or an A that ends its document, betrays its label, and more than half of the labels are
    random. Here a chunk has at least two sentences: one that reaches the target alone takes its
    successor with it, and one left alone at the end of its document makes no pair (counted in
    `tokens_unpaired`). So every label is a fair coin, whatever the chunk looks like.

    With fewer than two documents that have tokens there is no random B: all labels are 0.

    `seed`, `repetition`, the document and the set of documents fix its instances; the order of
    the documents fixes only the order of the instances.

    Raises ConfigError for a max_seq_length, short_seq_prob or repetition out of range.
    """
    if not 5 <= max_seq_length <= np.iinfo(np.uint16).max:
        raise ConfigError(f"max_seq_length = {max_seq_length}: must be in [5, 65535]")
    if not 0.0 <= short_seq_prob <= 1.0:
        raise ConfigError(f"short_seq_prob = {short_seq_prob}: must be in [0, 1]")
    if not 0 <= repetition < 1 << 32:
        raise ConfigError(f"repetition = {repetition}: must be in [0, 2**32)")

    kept = _without_empty(documents)
    # At most one instance a sentence. Pages that are never written take no memory.
    capacity = kept.sentence_offsets.size - 1
    spans = np.empty((capacity, 4), dtype=np.int64)
    labels = np.empty(capacity, dtype=np.int8)
    order = np.argsort(kept.document_hashes, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    instances, used, borrowed, truncated, unpaired = _plan_pairs(
        kept.sentence_offsets,
        kept.document_offsets,
        kept.document_hashes,
        order,
        rank,
        np.uint64(derive_key(seed, "pair")),
        np.uint32(repetition),
        np.int64(max_seq_length - _SPECIAL_TOKENS),
        np.uint64(round(short_seq_prob * (1 << 32))),
        spans,
        labels,
    )
    spans = spans[:instances]
    labels = labels[:instances].copy()

    first_tokens = spans[:, 1] - spans[:, 0]
    second_tokens = spans[:, 3] - spans[:, 2]
    offsets = np.zeros(instances + 1, dtype=np.int64)
    np.cumsum(first_tokens + second_tokens + _SPECIAL_TOKENS, out=offsets[1:])
    input_ids = np.empty(offsets[-1], dtype=kept.ids.dtype)
    _write_pairs(
        read_only(kept.ids),
        spans,
        offsets,
        kept.ids.dtype.type(cls_id),
        kept.ids.dtype.type(sep_id),
        input_ids,
    )

    random_next = int(np.count_nonzero(labels))
    with_tokens = kept.document_hashes.size
    counts = InstanceCounts(
        documents=documents.document_hashes.size,
        documents_used=used,
        documents_one_sentence=with_tokens - used,
        documents_empty=documents.document_hashes.size - with_tokens,
        is_next=instances - random_next,
        random_next=random_next,
        tokens_read=int(kept.sentence_offsets[-1] - kept.sentence_offsets[0]),
        tokens_borrowed=borrowed,
        tokens_used=int(offsets[-1]) - _SPECIAL_TOKENS * instances,
        tokens_truncated=truncated,
        tokens_unpaired=unpaired,
    )
    return Instances(
        input_ids=input_ids,
        offsets=offsets,
        first_segment_length=(first_tokens + 2).astype(np.uint16),
        next_sentence_label=labels,
        counts=counts,
    )


def _without_empty(documents: EncodedDocuments) -> EncodedDocuments:
    """Return the same tokens without empty sentences and documents."""
    filled = np.diff(documents.sentence_offsets) > 0
    filled_before = np.zeros(filled.size + 1, dtype=np.int64)
    np.cumsum(filled, out=filled_before[1:])
    document_offsets = filled_before[documents.document_offsets]
    used = np.diff(document_offsets) > 0
    # An empty span begins where the next one does, so the starts of the filled ones suffice.
    return EncodedDocuments(
        ids=documents.ids,
        sentence_offsets=np.append(
            documents.sentence_offsets[:-1][filled], documents.sentence_offsets[-1]
        ),
        document_offsets=np.append(document_offsets[:-1][used], document_offsets[-1]),
        document_hashes=documents.document_hashes[used],
    )


@nb.njit(cache=True, nogil=True)
def _plan_pairs(
    sentence_offsets: NDArray[np.int64],
    document_offsets: NDArray[np.int64],
    document_hashes: NDArray[np.uint64],
    order: NDArray[np.int64],
    rank: NDArray[np.int64],
    key: np.uint64,
    stream: np.uint32,
    max_tokens: np.int64,
    short_threshold: np.uint64,
    spans: NDArray[np.int64],
    labels: NDArray[np.int8],
) -> tuple[int, int, int, int, int]:
    """Fill `spans` (start and end of A and of B in ids) and `labels`; return the counts.

    `order` lists the documents by hash and `rank` is its inverse. A document's draws are counted
    in blocks of four words: one for its target length, then for each instance one of (split,
    label, other document, its first sentence) and one for every 128 tokens truncated.
    """
    instances = 0
    used = 0
    borrowed = 0
    truncated = 0
    unpaired = 0
    others = order.size - 1
    for document in range(document_hashes.size):
        identity = document_hashes[document]
        begin = document_offsets[document]
        last = document_offsets[document + 1]
        if last - begin >= 2:
            used += 1
        words = philox(key, np.uint32(0), stream, identity)
        block = np.uint32(1)
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
            if others > 0 and words[1] < _COIN:
                place = np.int64(below(words[2], np.uint32(others)))
                if place >= rank[document]:
                    place += 1
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


@nb.njit(cache=True, nogil=True)
def _write_pairs(
    ids: NDArray[Any],
    spans: NDArray[np.int64],
    offsets: NDArray[np.int64],
    cls_id: Any,
    sep_id: Any,
    input_ids: NDArray[Any],
) -> None:
    for instance in range(spans.shape[0]):
        at = offsets[instance]
        input_ids[at] = cls_id
        at += 1
        for segment in range(2):
            start = spans[instance, 2 * segment]
            length = spans[instance, 2 * segment + 1] - start
            input_ids[at : at + length] = ids[start : start + length]
            at += length
            input_ids[at] = sep_id
            at += 1
