"""Philox against the published known answers, and the properties of keyed permutations."""

from __future__ import annotations

import numba as nb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.derived_keys import derive_key
from pipeline.keyed_random import below, draw, permutation, philox, unit

compiling = settings(deadline=None)  # the first example waits for numba


@nb.njit
def block_of(key, block, stream, identity):
    return philox(key, block, stream, identity)


@nb.njit
def below_of(word, bound):
    return below(word, bound)


@nb.njit
def unit_of(word):
    return unit(word)


# Random123's kat_vectors, philox4x32 10: counter words, key words, answer. Counter words
# 2 and 3 are the low and high half of our identity; key word 0 is the low half of our key.
KNOWN_ANSWERS = {
    "zeros": (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    "ones": (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    "pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}


@pytest.mark.parametrize("name", KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(name):
    counter, key, answer = KNOWN_ANSWERS[name]
    words = block_of(
        np.uint64(key[1] << 32 | key[0]),
        np.uint32(counter[0]),
        np.uint32(counter[1]),
        np.uint64(counter[3] << 32 | counter[2]),
    )
    assert tuple(words) == answer


@compiling
@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
)
def test_draws_are_the_words_of_consecutive_blocks(key, index, stream, identity):
    words = block_of(np.uint64(key), np.uint32(index >> 2), np.uint32(stream), np.uint64(identity))
    drawn = draw(np.uint64(key), np.uint32(index), np.uint32(stream), np.uint64(identity))
    assert drawn == words[index & 3]


def test_keys_differ_by_seed_purpose_and_identity():
    keys = [
        derive_key(1, "mask"),
        derive_key(2, "mask"),
        derive_key(1, "pair"),
        derive_key(1, "mask", 1),
        derive_key(1, "mask", "a"),
        derive_key(1, "mask", 1, 1),
        derive_key(1, "mask", 11),
    ]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**64 for key in keys)


def test_keys_do_not_change_between_processes_and_versions():
    assert derive_key(0, "pair") == 0x1F311665C2DCBAF


@compiling
@given(st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1))
def test_below_is_the_word_scaled_to_the_bound(word, bound):
    scaled = below_of(np.uint32(word), np.uint32(bound))
    assert scaled == word * bound >> 32
    assert scaled < bound


@compiling
@given(st.integers(0, 2**32 - 1))
def test_unit_is_in_the_half_open_interval(word):
    assert 0.0 <= unit_of(np.uint32(word)) < 1.0
    assert unit_of(np.uint32(word)) == word / 2**32


@compiling
@given(st.integers(0, 300), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_permutation_holds_every_number_once(count, key, stream):
    order = permutation(count, key, stream)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(count))
    assert np.array_equal(order, permutation(count, key, stream))


def test_permutations_differ_by_key_stream_and_identity():
    orders = [
        permutation(100, 1),
        permutation(100, 2),
        permutation(100, 1, stream=1),
        permutation(100, 1, identity=1),
        permutation(100, 1, identity=1 << 32),
    ]
    assert len({tuple(order) for order in orders}) == len(orders)


def test_every_permutation_of_four_is_equally_likely():
    orders = [tuple(permutation(4, 5, identity=identity)) for identity in range(24_000)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert counts.size == 24
    # Chi-squared with 23 degrees of freedom: 49.7 is exceeded once in a thousand keys.
    assert ((counts - 1000) ** 2 / 1000).sum() < 49.7


def test_a_permutation_of_too_many_entries_is_refused():
    with pytest.raises(ValueError, match=r"count = 4294967296"):
        permutation(1 << 32, 0)
