"""Small documents, instances read back as pairs, and a plain form of the released algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.derived_keys import derive_key
from pipeline.instance_rows import InstanceRows
from pipeline.instances import (
    EncodedDocuments,
    InstanceCounts,
    plan_instances,
    write_instances,
)
from pipeline.keyed_random import draw

CLS, SEP = 2, 3
FIRST_ID = 10  # ids below stand for special tokens

Documents = list[list[list[int]]]  # documents of sentences of ids


def encoded(documents: Documents, dtype=np.uint32, hashes=None, originals=None) -> EncodedDocuments:
    sentences = [sentence for document in documents for sentence in document]
    lengths = [len(sentence) for sentence in sentences]
    rng = np.random.default_rng(9)
    if hashes is None:
        hashes = rng.integers(0, 2**64, len(documents), dtype=np.uint64)
    return EncodedDocuments(
        ids=np.array([token for sentence in sentences for token in sentence], dtype=dtype),
        sentence_offsets=np.cumsum([0, *lengths], dtype=np.int64),
        document_offsets=np.cumsum([0, *map(len, documents)], dtype=np.int64),
        document_hashes=np.asarray(hashes, dtype=np.uint64),
        originals=np.asarray(hashes if originals is None else originals, dtype=np.uint64),
    )


def numbered(shape: list[list[int]]) -> Documents:
    """Documents of the given sentence lengths whose ids all differ, in text order."""
    next_id = FIRST_ID
    documents = []
    for lengths in shape:
        document = []
        for length in lengths:
            document.append(list(range(next_id, next_id + length)))
            next_id += length
        documents.append(document)
    return documents


@dataclass
class Built:
    rows: InstanceRows
    counts: InstanceCounts

    @property
    def labels(self) -> np.ndarray:
        assert self.rows.pair_labels is not None
        return self.rows.pair_labels


def build(documents: EncodedDocuments, repetition=0, repetitions=None, **changes) -> Built:
    """All instances in the order of the plan."""
    arguments = {"objective": "nsp", "seed": 7, "max_seq_length": 32, "short_seq_prob": 0.1}
    plan = plan_instances(
        documents,
        repetitions=[repetition] if repetitions is None else repetitions,
        **(arguments | changes),
    )
    order = np.arange(plan.instances, dtype=np.int64)
    rows = write_instances(plan, documents, order, cls_id=CLS, sep_id=SEP)
    assert np.array_equal(np.diff(rows.offsets), plan.lengths())
    return Built(rows, plan.counts)


def pairs(built: Built) -> list[tuple[list[int], list[int], int]]:
    """A, B and label of every instance; checks the special tokens on the way."""
    found = []
    rows = built.rows
    for row in range(rows.rows):
        ids = rows.input_ids[rows.offsets[row] : rows.offsets[row + 1]].tolist()
        split = int(rows.first_segment_length[row])
        assert ids[0] == CLS and ids[split - 1] == SEP and ids[-1] == SEP
        first, second = ids[1 : split - 1], ids[split:-1]
        assert min(first + second) >= FIRST_ID  # exactly three special tokens
        assert first and second
        found.append((first, second, int(built.labels[row])))
    return found


def documents_of_ids(documents: Documents) -> dict[int, int]:
    return {
        token: number
        for number, document in enumerate(documents)
        for sentence in document
        for token in sentence
    }


def random_shape(rng, documents, sentences=(1, 12), tokens=(0, 20)) -> list[list[int]]:
    return [rng.integers(*tokens, rng.integers(*sentences)).tolist() for _ in range(documents)]


# The reference: create_pretraining_data.py (Devlin et al. 2019; for SOP, Lan et al. 2020) with its
# lists, its loop and its truncation, fed the keyed draws; where it differs from the release a
# comment says so.


class Draws:
    def __init__(self, seed, repetition, document_hash):
        self.key = np.uint64(derive_key(seed, "pair"))
        self.stream = np.uint32(repetition)
        self.identity = np.uint64(document_hash)
        self.next_block = 0

    def block(self):
        first = 4 * self.next_block
        self.next_block += 1
        return [
            int(draw(self.key, np.uint32(first + word), self.stream, self.identity))
            for word in range(4)
        ]

    def bits(self):
        while True:
            for word in self.block():
                for bit in range(32):
                    yield word >> bit & 1


def scaled(word, bound):
    return word * bound >> 32


def reference_truncation(tokens_a, tokens_b, max_num_tokens, bits):
    while len(tokens_a) + len(tokens_b) > max_num_tokens:
        longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        if next(bits):
            del longer[0]
        else:
            longer.pop()


def reference_pairs(
    documents, hashes, seed, repetition, max_seq_length, short_seq_prob, objective="nsp"
):
    max_num_tokens = max_seq_length - 3
    filled = [([s for s in d if s], h) for d, h in zip(documents, hashes, strict=True)]
    filled = [(document, document_hash) for document, document_hash in filled if document]
    made = []
    for document, document_hash in filled:
        draws = Draws(seed, repetition, document_hash)
        # Released: ten tries to hit another document. Here the choice is among the others.
        others = [d for d, h in sorted(filled, key=lambda f: f[1]) if h != document_hash]
        coin, length, _, _ = draws.block()
        target_seq_length = max_num_tokens
        if coin < short_seq_prob * 2**32:
            target_seq_length = 2 + scaled(length, max_num_tokens - 1)
        chunk = []
        i = 0
        while i < len(document):
            chunk.append(document[i])
            at_end = i == len(document) - 1
            full = sum(map(len, chunk)) >= target_seq_length
            # Released: a chunk of one sentence is closed too, with a random B.
            if (at_end or full) and len(chunk) >= 2:
                split, label, which, start = draws.block()
                a_end = 1 + scaled(split, len(chunk) - 1)
                tokens_a = [token for sentence in chunk[:a_end] for token in sentence]
                tokens_b = []
                # Called is_random_next in the released code of ALBERT too: swapped.
                is_swapped = objective == "sop" and label < 2**31
                is_random_next = objective == "nsp" and label < 2**31 and bool(others)
                if is_random_next:
                    target_b_length = target_seq_length - len(tokens_a)
                    other = others[scaled(which, len(others))]
                    for sentence in other[scaled(start, len(other)) :]:
                        tokens_b.extend(sentence)
                        if len(tokens_b) >= target_b_length:
                            break
                    i -= len(chunk) - a_end
                else:
                    tokens_b = [token for sentence in chunk[a_end:] for token in sentence]
                if is_swapped:
                    tokens_a, tokens_b = tokens_b, tokens_a
                reference_truncation(tokens_a, tokens_b, max_num_tokens, draws.bits())
                made.append((tokens_a, tokens_b, int(is_random_next or is_swapped)))
                chunk = []
            i += 1
    return made
