"""Objectives beside NSP: equal to a plain form of each, and what training relies on."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.nsp_reference import (
    CLS,
    FIRST_ID,
    SEP,
    build,
    documents_of_ids,
    encoded,
    numbered,
    pairs,
    random_shape,
    reference_pairs,
)
from tests.pipeline.packing_reference import reference_rows, rows_of

compiling = settings(deadline=None)  # the first example waits for numba

shapes = st.lists(st.lists(st.integers(0, 40), max_size=7), max_size=6)
PACKED = ["full_sentences", "doc_sentences", "sentence"]


def within_five_sigma(hits: int, draws: int, share: float) -> bool:
    return abs(hits - draws * share) <= 5 * (draws * share * (1 - share)) ** 0.5


@compiling
@given(
    shape=shapes,
    seed=st.integers(0, 2**63),
    repetition=st.integers(0, 2**32 - 1),
    max_seq_length=st.integers(5, 40),
    short_seq_prob=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_sentence_order_pairs_equal_the_plain_reference(
    shape, seed, repetition, max_seq_length, short_seq_prob
):
    documents = numbered(shape)
    flat = encoded(documents)
    built = build(
        flat,
        objective="sop",
        seed=seed,
        repetition=repetition,
        max_seq_length=max_seq_length,
        short_seq_prob=short_seq_prob,
    )
    assert pairs(built) == reference_pairs(
        documents,
        flat.document_hashes.tolist(),
        seed,
        repetition,
        max_seq_length,
        short_seq_prob,
        objective="sop",
    )


@compiling
@given(shape=shapes, seed=st.integers(0, 100))
def test_both_segments_of_sentence_order_are_consecutive_text_of_one_document(shape, seed):
    documents = numbered(shape)
    document_of = documents_of_ids(documents)
    built = build(encoded(documents), objective="sop", seed=seed)
    for first, second, label in pairs(built):
        assert document_of[first[0]] == document_of[second[-1]]
        earlier, later = (second, first) if label else (first, second)
        assert earlier[-1] < later[0]
    counts = built.counts
    assert counts.tokens_borrowed == 0
    assert counts.tokens_read == (
        counts.tokens_used + counts.tokens_truncated + counts.tokens_unpaired
    )


def test_half_of_the_sentence_order_pairs_are_swapped():
    documents = numbered(random_shape(np.random.default_rng(1), 4000, tokens=(1, 25)))
    labels = build(encoded(documents), objective="sop").labels
    assert labels.size > 5000
    assert within_five_sigma(np.count_nonzero(labels), labels.size, 0.5)


@pytest.mark.parametrize("documents", [[[[10, 11]]], [[[10]], [[11]]], [[[], [10], []], [[11]]]])
def test_a_document_of_one_sentence_gives_no_sentence_order_instance(documents):
    built = build(encoded(documents), objective="sop")
    assert built.rows.rows == 0
    assert built.counts.documents_one_sentence == len(documents)
    assert built.counts.tokens_unpaired == built.counts.tokens_read


def test_one_document_alone_serves_sentence_order():
    """Unlike next sentence prediction, which needs a second one for its random segments."""
    built = build(encoded(numbered([[5] * 400])), objective="sop")
    assert 0 < np.count_nonzero(built.labels) < built.labels.size


@compiling
@given(
    shape=shapes,
    objective=st.sampled_from(PACKED),
    seed=st.integers(0, 2**63),
    repetition=st.one_of(st.just(0), st.integers(1, 2**32 - 1)),
    max_seq_length=st.integers(5, 40),
)
def test_packed_rows_equal_the_plain_reference(shape, objective, seed, repetition, max_seq_length):
    documents = numbered(shape)
    flat = encoded(documents)
    built = build(
        flat,
        objective=objective,
        seed=seed,
        repetition=repetition,
        max_seq_length=max_seq_length,
    )
    assert rows_of(built) == reference_rows(
        documents, flat.document_hashes.tolist(), objective, seed, repetition, max_seq_length
    )


@compiling
@given(
    shape=shapes,
    objective=st.sampled_from(PACKED),
    repetition=st.integers(0, 3),
    max_seq_length=st.integers(5, 64),
)
def test_packed_rows_hold_every_token_once_and_have_no_pair(
    shape, objective, repetition, max_seq_length
):
    built = build(
        encoded(numbered(shape)),
        objective=objective,
        repetition=repetition,
        max_seq_length=max_seq_length,
    )
    rows = rows_of(built)
    assert built.rows.pair_labels is None
    assert built.rows.first_segment_length.tolist() == [len(row) for row in rows]
    for row in rows:
        assert len(row) <= max_seq_length
        assert row[0] == CLS and row[-1] == SEP
        assert row.count(CLS) == 1
        assert (SEP, SEP) not in itertools.pairwise(row)
    own = sorted(token for row in rows for token in row if token >= FIRST_ID)
    assert own == list(range(FIRST_ID, FIRST_ID + sum(map(sum, shape))))
    counts = built.counts
    assert counts.tokens_used == counts.tokens_read == len(own)
    assert counts.documents_one_sentence == 0
    assert counts.documents == counts.documents_used + counts.documents_empty


def segments_of(row):
    """The runs of ids between special tokens."""
    found = [[]]
    for token in row[1:-1]:
        if token == SEP:
            found.append([])
        else:
            found[-1].append(token)
    return found


def test_separators_stand_where_documents_meet_and_nowhere_else():
    documents = numbered([[3, 4], [5], [2, 2], [40, 1], [6]])
    document_of = documents_of_ids(documents)
    rows = rows_of(build(encoded(documents), objective="full_sentences", max_seq_length=24))
    assert max(map(len, map(segments_of, rows))) > 1
    for row in rows:
        kinds = [{document_of[token] for token in segment} for segment in segments_of(row)]
        assert all(len(kind) == 1 for kind in kinds)
        assert all(a != b for a, b in itertools.pairwise(kinds))


def test_document_rows_never_cross_a_document():
    documents = numbered(random_shape(np.random.default_rng(2), 50))
    document_of = documents_of_ids(documents)
    for row in rows_of(build(encoded(documents), objective="doc_sentences")):
        assert SEP not in row[1:-1]
        assert len({document_of[token] for token in row[1:-1]}) == 1


def test_sentences_longer_than_a_row_are_cut_and_nothing_is_lost():
    documents = numbered([[5, 100_000, 5]])
    for objective in PACKED:
        built = build(encoded(documents), objective=objective, max_seq_length=512)
        assert built.counts.tokens_used == built.counts.tokens_read == 100_010
        assert np.diff(built.rows.offsets).max() == 512


def test_rows_are_full_when_they_may_cross_documents():
    documents = numbered(np.random.default_rng(3).integers(1, 30, (500, 6)).tolist())
    full = np.diff(build(encoded(documents), objective="full_sentences").rows.offsets)
    single = np.diff(build(encoded(documents), objective="sentence").rows.offsets)
    assert full[:-1].min() >= 32 - 30  # a row ends only where the next sentence does not fit
    assert full.mean() > 24 > single.mean()


@pytest.mark.parametrize("objective", ["nsp", "sop", *PACKED])
def test_repetitions_in_one_plan_are_those_made_alone(objective):
    flat = encoded(numbered(random_shape(np.random.default_rng(4), 60)))
    together = build(flat, objective=objective, repetitions=range(3))
    alone = [build(flat, objective=objective, repetition=repetition) for repetition in range(3)]
    assert rows_of(together) == [row for one in alone for row in rows_of(one)]
    assert together.counts.documents == alone[0].counts.documents == 60
    assert together.counts.tokens_read == 3 * alone[0].counts.tokens_read
    different = {tuple(map(tuple, rows_of(one))) for one in alone}
    # A sentence is the same sentence each time; only its masks differ.
    assert len(different) == (1 if objective == "sentence" else 3)


@pytest.mark.parametrize("objective", ["sop", *PACKED])
def test_instances_depend_on_the_set_of_documents_and_not_on_their_order(objective):
    rng = np.random.default_rng(5)
    documents = numbered(random_shape(rng, 60))
    hashes = rng.integers(0, 2**64, 60, dtype=np.uint64)
    order = rng.permutation(60)
    one = rows_of(build(encoded(documents, hashes=hashes), objective=objective, repetition=1))
    moved = encoded([documents[i] for i in order], hashes=hashes[order])
    other = rows_of(build(moved, objective=objective, repetition=1))
    assert sorted(one) == sorted(other)


def test_word_starts_go_with_their_tokens():
    flat = encoded(numbered(random_shape(np.random.default_rng(6), 40)))
    marked = encoded(numbered(random_shape(np.random.default_rng(6), 40)))
    object.__setattr__(marked, "word_starts", flat.ids % 3 == 0)
    for objective in ("nsp", "full_sentences"):
        rows = build(marked, objective=objective).rows
        assert rows.word_starts is not None
        special = np.isin(rows.input_ids, [CLS, SEP])
        assert np.array_equal(rows.word_starts, special | (rows.input_ids % 3 == 0))
        assert build(flat, objective=objective).rows.word_starts is None
