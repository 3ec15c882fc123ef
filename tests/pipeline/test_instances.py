"""NSP pairs: equal to a plain form of the released algorithm, and what any user relies on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.instances import EncodedDocuments
from pipeline.instances.pairs import _plan_pairs
from pipeline.instances.plan import _write_segments
from tests.pipeline.nsp_reference import (
    FIRST_ID,
    build,
    documents_of_ids,
    encoded,
    numbered,
    pairs,
    random_shape,
    reference_pairs,
)

compiling = settings(deadline=None)  # the first example waits for numba

shapes = st.lists(st.lists(st.integers(0, 12), max_size=7), max_size=6)


@compiling
@given(
    shape=shapes,
    seed=st.integers(0, 2**63),
    repetition=st.integers(0, 2**32 - 1),
    max_seq_length=st.integers(5, 40),
    short_seq_prob=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_instances_equal_the_plain_reference(
    shape, seed, repetition, max_seq_length, short_seq_prob
):
    documents = numbered(shape)
    flat = encoded(documents)
    built = build(
        flat,
        seed=seed,
        repetition=repetition,
        max_seq_length=max_seq_length,
        short_seq_prob=short_seq_prob,
    )
    assert pairs(built) == reference_pairs(
        documents, flat.document_hashes.tolist(), seed, repetition, max_seq_length, short_seq_prob
    )


def test_a_random_segment_is_never_of_a_copy_of_the_same_document():
    texts = numbered(random_shape(np.random.default_rng(3), 6, sentences=(4, 9), tokens=(1, 9)))
    documents = [text for text in texts for _ in range(3)]
    originals = np.repeat(np.arange(6) * 10**18, 3)
    document_of = documents_of_ids(texts)
    others = Counter()
    for repetition in range(60):
        built = build(encoded(documents, originals=originals), repetition=repetition)
        for first, second, label in pairs(built):
            if label == 1:
                others[document_of[first[0]], document_of[second[0]]] += 1
    assert sum(others.values()) > 800
    assert all(one != other for one, other in others)
    # Each of the five others is as likely: a fifth, within five standard deviations.
    for text in range(6):
        drawn = [others[text, other] for other in range(6) if other != text]
        expected = sum(drawn) / 5
        assert max(abs(number - expected) for number in drawn) < 5 * expected**0.5


def test_copies_alone_have_no_random_segment():
    documents = numbered([[3, 4, 5, 6]]) * 4
    built = build(encoded(documents, originals=np.zeros(4)))
    assert built.labels.size > 0 and not built.labels.any()


def test_long_cuts_equal_the_plain_reference():
    documents = numbered([[700, 3, 1500], [2, 900], [400, 400, 400]])
    flat = encoded(documents)
    for seed in range(20):
        assert pairs(build(flat, seed=seed)) == reference_pairs(
            documents, flat.document_hashes.tolist(), seed, 0, 32, 0.1
        )


@compiling
@given(
    shape=shapes,
    seed=st.integers(0, 100),
    max_seq_length=st.integers(5, 64),
    short_seq_prob=st.floats(0, 1),
)
def test_segments_come_from_where_their_label_says(shape, seed, max_seq_length, short_seq_prob):
    documents = numbered(shape)
    document_of = documents_of_ids(documents)
    built = build(
        encoded(documents),
        seed=seed,
        max_seq_length=max_seq_length,
        short_seq_prob=short_seq_prob,
    )
    assert built.labels.dtype == np.int8
    assert built.rows.first_segment_length.dtype == np.uint16
    for first, second, label in pairs(built):
        assert len(first) + len(second) + 3 <= max_seq_length
        for segment in (first, second):  # a run of the text, within one document
            assert segment == list(range(segment[0], segment[0] + len(segment)))
            assert document_of[segment[0]] == document_of[segment[-1]]
        same_document = document_of[first[0]] == document_of[second[0]]
        assert same_document == (label == 0)
        if label == 0:
            assert second[0] > first[-1]


@compiling
@given(shape=shapes, seed=st.integers(0, 100))
def test_every_token_is_accounted_for(shape, seed):
    documents = numbered(shape)
    counts = build(encoded(documents), seed=seed, max_seq_length=16).counts
    with_tokens = [sum(length > 0 for length in lengths) for lengths in shape]
    assert counts.documents == len(shape)
    assert counts.documents_empty == with_tokens.count(0)
    assert counts.documents_one_sentence == with_tokens.count(1)
    assert counts.documents_used == len(shape) - with_tokens.count(0) - with_tokens.count(1)
    assert counts.tokens_read == sum(map(sum, shape))
    assert (
        counts.tokens_read + counts.tokens_borrowed
        == counts.tokens_used + counts.tokens_truncated + counts.tokens_unpaired
    )


def test_a_text_is_used_once_and_what_random_pairs_put_back_comes_again():
    documents = numbered(random_shape(np.random.default_rng(1), 200, tokens=(1, 20)))
    built = build(encoded(documents), max_seq_length=4096, short_seq_prob=0.5)
    assert built.counts.tokens_truncated == 0
    own = [
        token
        for first, second, label in pairs(built)
        for token in first + (second if label == 0 else [])
    ]
    assert len(own) == len(set(own))
    assert built.counts.tokens_unpaired == built.counts.tokens_read - len(own)
    unpaired = set(documents_of_ids(documents)) - set(own)
    last_sentences = {token for document in documents for token in document[-1]}
    assert unpaired <= last_sentences


def test_instances_depend_on_the_set_of_documents_and_not_on_their_order():
    rng = np.random.default_rng(2)
    documents = numbered(random_shape(rng, 60))
    hashes = rng.integers(0, 2**64, 60, dtype=np.uint64)
    order = rng.permutation(60)
    one = pairs(build(encoded(documents, hashes=hashes)))
    other = pairs(build(encoded([documents[i] for i in order], hashes=hashes[order])))
    assert sorted(one) == sorted(other)


def test_empty_sentences_and_documents_change_nothing():
    documents = [[[11, 12], [13], [14, 15]], [[21], [22, 23]]]
    padded = [[], [[], [11, 12], [], [13], [14, 15]], [[], []], [[21], [], [22, 23], []], []]
    for seed in range(30):
        one = build(encoded(documents, hashes=[5, 6]), seed=seed)
        other = build(encoded(padded, hashes=[1, 5, 2, 6, 3]), seed=seed)
        assert pairs(one) == pairs(other)
        assert other.counts.documents_empty == 3


@pytest.mark.parametrize("documents", [[], [[]], [[], [[]]], [[[10, 11]]], [[[10]], [[11]]]])
def test_documents_without_two_sentences_give_no_instance(documents):
    built = build(encoded(documents))
    assert built.rows.input_ids.size == 0
    assert built.rows.offsets.tolist() == [0]
    assert built.labels.size == 0
    assert built.counts.tokens_unpaired == built.counts.tokens_read


def test_one_document_alone_gives_true_successors_only():
    documents = numbered([[5] * 50, [], [0]])
    for seed in range(20):
        built = build(encoded(documents), seed=seed)
        assert built.labels.size > 0 and not built.labels.any()


def test_a_document_of_one_sentence_still_serves_as_random_segment():
    documents = numbered([[5] * 50, [4]])
    built = build(encoded(documents))
    random_segments = [second for _, second, label in pairs(built) if label == 1]
    assert random_segments
    assert all(segment == documents[1][0] for segment in random_segments)


def test_repetitions_and_seeds_differ_and_repeat():
    flat = encoded(numbered(random_shape(np.random.default_rng(3), 40)))
    made = [
        build(flat, seed=seed, repetition=repetition).rows.input_ids.tobytes()
        for seed in (0, 1)
        for repetition in (0, 1, 2**32 - 1)
    ]
    assert len(set(made)) == 6
    assert build(flat, seed=1, repetition=2**32 - 1).rows.input_ids.tobytes() == made[-1]


def test_both_id_widths_give_the_same_instances():
    documents = numbered(random_shape(np.random.default_rng(4), 100))
    narrow = build(encoded(documents, np.uint16))
    wide = build(encoded(documents, np.uint32))
    assert narrow.rows.input_ids.dtype == np.uint16
    assert wide.rows.input_ids.dtype == np.uint32
    assert np.array_equal(narrow.rows.input_ids, wide.rows.input_ids)
    assert np.array_equal(narrow.rows.offsets, wide.rows.offsets)
    assert narrow.counts == wide.counts


def within_five_sigma(hits: int, draws: int, share: float) -> bool:
    return abs(hits - draws * share) <= 5 * (draws * share * (1 - share)) ** 0.5


def test_labels_are_balanced_and_the_chunk_does_not_betray_them():
    """In the released code a first segment longer than the target is always labelled random."""
    documents = numbered(
        np.random.default_rng(5).choice([2, 6, 60], (4000, 6), p=[0.4, 0.4, 0.2]).tolist()
    )
    ends = {document[-2][-1] for document in documents}
    made = pairs(build(encoded(documents), short_seq_prob=0.0))
    groups = {
        "all": made,
        "long first segment": [pair for pair in made if len(pair[0]) >= 14],
        "short first segment": [pair for pair in made if len(pair[0]) < 6],
        "first segment ends before the last sentence": [p for p in made if p[0][-1] in ends],
    }
    for name, group in groups.items():
        random_next = sum(label for _, _, label in group)
        assert len(group) > 1000, name
        assert within_five_sigma(random_next, len(group), 0.5), (name, random_next, len(group))


def test_the_other_document_and_its_first_sentence_are_uniform():
    documents = numbered([[4] * 8] * 11)
    flat = encoded(documents)
    document_of = documents_of_ids(documents)
    drawn = np.zeros((11, 11), dtype=int)
    starts = np.zeros(8, dtype=int)
    for seed in range(1500):
        for first, second, label in pairs(build(flat, seed=seed, max_seq_length=16)):
            if label == 1:
                drawn[document_of[first[0]], document_of[second[0]]] += 1
                starts[(second[0] - FIRST_ID) // 4 % 8] += 1
    assert (np.diag(drawn) == 0).all()
    others = drawn[~np.eye(11, dtype=bool)]
    expected = np.repeat(drawn.sum(axis=1) / 10, 10)
    # Chi-squared with 99 degrees of freedom: 148 is exceeded once in a thousand seeds.
    assert ((others - expected) ** 2 / expected).sum() < 148
    # Truncation may move a start within its sentence, never to another: 7 degrees, 24.3.
    assert ((starts - starts.mean()) ** 2 / starts.mean()).sum() < 24.3


def test_the_split_is_uniform_over_the_sentences_of_a_chunk():
    documents = numbered([[5] * 6] * 6000)
    built = build(encoded(documents), short_seq_prob=0.0, max_seq_length=33)
    whole = [len(a) // 5 for a, b, label in pairs(built) if label == 0 and len(a + b) == 30]
    splits = np.bincount(whole)
    assert splits.size == 6 and splits[0] == 0
    # Chi-squared with 4 degrees of freedom: 18.5 is exceeded once in a thousand seeds.
    assert ((splits[1:] - splits[1:].mean()) ** 2 / splits[1:].mean()).sum() < 18.5


@pytest.mark.parametrize(
    ("first_tokens", "second_tokens"),
    [(125, 130), (126, 126), (200, 200), (600, 1), (1, 600), (62, 63), (63, 62), (100_000, 7)],
)
def test_a_pair_too_long_fills_the_limit_exactly(first_tokens, second_tokens):
    documents = numbered([[first_tokens, second_tokens]] * 2)
    made = pairs(build(encoded(documents), max_seq_length=128, short_seq_prob=0.0))
    assert made
    for first, second, label in made:
        if label == 0:
            assert len(first) + len(second) + 3 == 128
            shorter = min(first_tokens, second_tokens)
            # The longer side is cut first, so the shorter keeps all it has up to one half.
            assert min(len(first), len(second)) == min(shorter, 62)


def test_a_pair_that_just_fits_is_not_cut():
    built = build(encoded(numbered([[60, 65]])), max_seq_length=128, short_seq_prob=0.0)
    assert np.diff(built.rows.offsets).tolist() == [128]
    assert built.counts.tokens_truncated == 0


def test_truncation_takes_front_and_back_evenly():
    documents = numbered([[40, 500]] * 3000)
    at_front = total = 0
    for _, second, label in pairs(build(encoded(documents), short_seq_prob=0.0)):
        if label == 0:
            start = (second[0] - FIRST_ID) % 540 - 40
            at_front += start
            total += 500 - len(second)
            assert 150 < start < 350  # binomial of about 485: both ends are cut, never one alone
    assert within_five_sigma(at_front, total, 0.5)


def test_segments_are_packed_to_the_target_length():
    documents = numbered(np.random.default_rng(6).integers(1, 30, (300, 80)).tolist())
    flat = encoded(documents)
    packed = np.diff(build(flat, max_seq_length=128, short_seq_prob=0.0).rows.offsets)
    usual = np.diff(build(flat, max_seq_length=128, short_seq_prob=0.1).rows.offsets)
    assert packed.mean() > 0.93 * 128
    assert usual.mean() > 0.85 * 128
    assert usual.max() == 128


def test_short_targets_are_uniform_from_two_up():
    """The first pair of a document of one-token sentences is as long as its target."""
    document = numbered([[1] * 30])  # alone, so that no pair is random
    targets = []
    for seed in range(5600):
        built = build(encoded(document), seed=seed, short_seq_prob=1.0)
        targets.append(built.rows.offsets[1] - 3)
    counts = np.bincount(targets)
    assert counts.size == 30 and counts[:2].sum() == 0
    # Chi-squared with 27 degrees of freedom: 55.5 is exceeded once in a thousand seeds.
    assert ((counts[2:] - 200) ** 2 / 200).sum() < 55.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_seq_length": 4}, "max_seq_length = 4"),
        ({"max_seq_length": 65536}, "max_seq_length = 65536"),
        ({"short_seq_prob": 1.5}, "short_seq_prob = 1.5"),
        ({"short_seq_prob": -0.1}, "short_seq_prob = -0.1"),
        ({"repetition": -1}, "repetition = -1"),
        ({"repetition": 2**32}, "repetition = 4294967296"),
    ],
)
def test_a_value_out_of_range_is_named(change, message):
    with pytest.raises(ConfigError, match=message):
        build(encoded([[[10], [11]]]), **change)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("sentence_offsets", [0, 2, 9], "sentence_offsets: must rise"),
        ("sentence_offsets", [0, 3, 2], "sentence_offsets: must rise"),
        ("sentence_offsets", [], "sentence_offsets: must rise"),
        ("document_offsets", [0, 3], "document_offsets: must rise"),
        ("ids", [1, 2, 3], "ids are int64"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(field, value, message):
    arrays = {
        "ids": np.array([10, 11, 12], dtype=np.uint16),
        "sentence_offsets": np.array([0, 2, 3], dtype=np.int64),
        "document_offsets": np.array([0, 2], dtype=np.int64),
        "document_hashes": np.array([1], dtype=np.uint64),
        "originals": np.array([1], dtype=np.uint64),
    }
    arrays[field] = np.array(value, dtype=np.int64)
    with pytest.raises(ValueError, match=message):
        EncodedDocuments(**arrays)


def test_arrays_of_other_types_and_lengths_are_refused():
    flat = encoded([[[10], [11]]])
    with pytest.raises(ValueError, match="2 document_hashes for 1 documents"):
        replace(flat, document_hashes=np.zeros(2, dtype=np.uint64))
    with pytest.raises(ValueError, match="2 originals for 1 documents"):
        replace(flat, originals=np.zeros(2, dtype=np.uint64))
    with pytest.raises(ValueError, match="document_hashes are int64"):
        replace(flat, document_hashes=np.zeros(1, dtype=np.int64))
    with pytest.raises(ValueError, match="sentence_offsets are int32"):
        replace(flat, sentence_offsets=flat.sentence_offsets.astype(np.int32))


def test_read_only_and_strided_arrays_are_taken_without_another_compilation():
    flat = encoded(numbered(random_shape(np.random.default_rng(7), 30)))
    expected = build(flat)
    arrays = {}
    for field in ("ids", "sentence_offsets", "document_offsets", "document_hashes", "originals"):
        strided = np.repeat(getattr(flat, field), 2)[::2]
        strided.flags.writeable = False
        arrays[field] = strided
    built = build(EncodedDocuments(**arrays))
    assert np.array_equal(built.rows.input_ids, expected.rows.input_ids)
    assert len(_plan_pairs.signatures) == 1
    assert len(_write_segments.signatures) <= 3  # one a width of ids, one for word_starts
