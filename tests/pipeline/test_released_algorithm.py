"""NSP pairs and mask counts are distributed as those of google-research/bert's own algorithm.

It draws its own random numbers here, from Python's generator. Equality under the same draws is
tested in test_instances.py and test_masking.py. Distances are Kolmogorov and Smirnov's, between
samples of n and m instances; one above 1.95 (1/n + 1/m)^(1/2) comes once in a thousand seeds.
Our rule that a chunk has two sentences moves at most one instance a document.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from tests.benchmarks import bert_reference
from tests.pipeline.masking_reference import CLS, FIRST_WORD, SEP, TOKEN, mask
from tests.pipeline.nsp_reference import FIRST_ID, build, encoded, numbered, pairs

MAX_SEQ_LENGTH = 64


@dataclass
class Sample:
    """What is compared of many instances, one entry each."""

    lengths: np.ndarray
    first_segment: np.ndarray
    labels: np.ndarray
    cut_at_front: np.ndarray
    """Tokens that the segments' first sentences lost, of A and of B."""


def sample(made: list[tuple[list[int], list[int], int]], starts: np.ndarray) -> Sample:
    first_ids = np.array([(a[0], b[0]) for a, b, _ in made]).ravel()
    sentence = np.searchsorted(starts, first_ids, "right") - 1
    return Sample(
        lengths=np.array([len(a) + len(b) + 3 for a, b, _ in made]),
        first_segment=np.array([len(a) for a, _, _ in made]),
        labels=np.array([label for _, _, label in made]),
        cut_at_front=first_ids - starts[sentence],
    )


def released(documents, short_seq_prob: float) -> list[tuple[list[int], list[int], int]]:
    """The released algorithm's pairs, its masks undone."""
    rng = random.Random(1)
    texts = [[[str(token) for token in one] for one in document] for document in documents]
    made = []
    for number in range(len(texts)):
        for tokens, types, is_random, positions, originals in bert_reference.instances_of(
            texts, number, MAX_SEQ_LENGTH, ["0"], rng, short_seq_prob
        ):
            for position, original in zip(positions, originals, strict=True):
                tokens[position] = original
            split = types.index(1)
            a, b = tokens[1 : split - 1], tokens[split:-1]
            made.append(([int(token) for token in a], [int(token) for token in b], int(is_random)))
    return made


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Of two samples, in units of the bound above."""
    values = np.union1d(one, other)
    shares = [np.searchsorted(np.sort(part), values, "right") / part.size for part in (one, other)]
    bound = 1.95 * (1 / one.size + 1 / other.size) ** 0.5
    return float(np.abs(shares[0] - shares[1]).max() / bound)


def token_ids_at(shape: list[list[int]]) -> np.ndarray:
    """The first id of every sentence of `numbered` documents, and the one after the last."""
    return FIRST_ID + np.cumsum([0, *(length for lengths in shape for length in lengths)])


@pytest.mark.parametrize(
    "tokens",
    [
        (3, 20),  # chunks of several sentences, most of them a little too long
        (20, 60),  # two sentences a chunk, and much to cut
    ],
)
def test_pairs_are_distributed_as_the_released_algorithm_makes_them(tokens) -> None:
    shape = np.random.default_rng(2).integers(*tokens, (500, 60)).tolist()
    documents = numbered(shape)
    starts = token_ids_at(shape)
    built = build(encoded(documents), max_seq_length=MAX_SEQ_LENGTH, short_seq_prob=0.0)
    ours = sample(pairs(built), starts)
    theirs = sample(released(documents, 0.0), starts)
    assert ours.labels.size > 4000
    assert abs(ours.labels.size / theirs.labels.size - 1) < 0.03
    assert abs(ours.labels.mean() - theirs.labels.mean()) < 0.02
    assert distance(ours.lengths, theirs.lengths) < 1
    assert distance(ours.first_segment, theirs.first_segment) < 1
    assert distance(ours.cut_at_front, theirs.cut_at_front) < 1


def test_short_targets_are_distributed_as_the_released_algorithm_draws_them() -> None:
    """A document of one-token sentences meets its target exactly: its first pair tells it."""
    shape = [[1] * 70] * 3000
    documents = numbered(shape)
    starts = token_ids_at(shape)
    firsts = set(starts[:-1:70].tolist())
    flat = encoded(documents)
    found = (
        pairs(build(flat, max_seq_length=MAX_SEQ_LENGTH, short_seq_prob=0.5)),
        released(documents, 0.5),
    )
    ours, theirs = (sample([one for one in made if one[0][0] in firsts], starts) for made in found)
    assert ours.labels.size >= 3000
    assert distance(ours.lengths, theirs.lengths) < 1
    assert distance(ours.first_segment, theirs.first_segment) < 1


def test_a_distance_tells_samples_apart_that_differ_by_a_twentieth() -> None:
    rng = np.random.default_rng(3)
    one, other = (rng.integers(0, 61, 6000) for _ in range(2))
    assert distance(one, other) < 1 < distance(one, np.where(rng.random(6000) < 0.1, 0, other))


def test_mask_counts_are_those_of_the_released_algorithm_but_for_its_special_tokens() -> None:
    """It takes 15 % of all tokens, [CLS] and [SEP] among them: at most one token more."""
    rows = [
        [CLS, *[FIRST_WORD] * (length // 2), SEP, *[FIRST_WORD] * (length - length // 2), SEP]
        for length in range(2, 510)
    ]
    ours = np.diff(mask(rows, TOKEN).row_offsets)
    theirs = [
        len(bert_reference.masked(["[CLS]", *["a"] * (len(row) - 3), "[SEP]", "[SEP]"], ["a"],
                                  random.Random(0))[0])
        for row in rows
    ]  # fmt: skip
    assert set((np.array(theirs) - ours).tolist()) == {0, 1}
