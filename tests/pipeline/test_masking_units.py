"""Words by flags, n-grams and spans: what is masked together, and how long it is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import MaskingConfig
from pipeline.errors import ConfigError
from pipeline.masking.mask import length_thresholds
from tests.pipeline.masking_reference import (
    CLS,
    FIRST_WORD,
    MASK,
    NGRAM,
    SEP,
    SPAN,
    TOKEN,
    VOCABULARY,
    WHOLE_WORD,
    by_row,
    length_shares,
    mask,
    reference_mask,
    text_rows,
)

compiling = settings(deadline=None)  # the first example waits for numba


def flags(rows) -> np.ndarray:
    return np.array([flag for row in rows for flag in row], dtype=np.bool_)


@compiling
@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, len(VOCABULARY) - 1), st.booleans()), max_size=40),
        min_size=1,
        max_size=5,
    ),
    unit=st.sampled_from(["whole_word", "ngram", "span"]),
    probability=st.floats(0.01, 1.0),
    seed=st.integers(0, 100),
)
def test_words_that_flags_mark_equal_the_plain_reference(rows, unit, probability, seed):
    rules = MaskingConfig(unit=unit, probability=probability)
    ids = [[token for token, _ in row] for row in rows]
    starts = [[flag for _, flag in row] for row in rows]
    masked = mask(ids, rules, seed=seed, word_starts=flags(starts))
    keys = {"seed": seed, "purpose": "mask", "epoch": 0, "repetition": 0}
    assert by_row(ids, masked) == [
        reference_mask(row, number, rules, **keys, word_starts=starts[number])
        for number, row in enumerate(ids)
    ]


def test_flags_that_say_what_the_pieces_say_give_the_same_mask():
    rows = text_rows(200, 64)
    starts = flags([[not VOCABULARY[token].startswith("##") for token in row] for row in rows])
    for rules in (TOKEN, WHOLE_WORD, NGRAM, SPAN):
        one, other = mask(rows, rules), mask(rows, rules, word_starts=starts)
        assert np.array_equal(one.input_ids, other.input_ids)
        assert np.array_equal(one.positions, other.positions)


def drawn_lengths(rules: MaskingConfig) -> np.ndarray:
    """Lengths in words of lone draws: a word a token, a budget that no second draw meets."""
    # Starts are uniform, so most draws of a long row are cut neither by its end nor by the budget.
    row = [CLS, *[FIRST_WORD] * 2000, SEP]
    found = []
    for _, positions, _ in by_row([row] * 50, mask([row] * 50, rules)):
        runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
        found += [len(run) for run in runs]
    return np.array(found)


@pytest.mark.parametrize("max_ngram", [1, 3, 5])
def test_ngram_lengths_fall_as_one_over_n(max_ngram):
    rules = MaskingConfig(unit="ngram", max_ngram=max_ngram)
    draws = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint64)
    counts = np.bincount(np.searchsorted(length_thresholds(rules), draws, "right"))
    expected = 100_000 * np.array(length_shares(rules))
    assert counts.size == max_ngram
    assert (np.diff(counts) < 0).all()
    # Chi-squared with at most 4 degrees of freedom: 18.5 is exceeded once in a thousand seeds.
    assert ((counts - expected) ** 2 / expected).sum() < 18.5


def test_span_lengths_are_geometric_up_to_ten_words_with_the_published_mean():
    draws = np.random.default_rng(1).integers(0, 2**32, 100_000, dtype=np.uint64)
    lengths = np.searchsorted(length_thresholds(SPAN), draws, "right") + 1
    assert lengths.min() == 1 and lengths.max() == 10
    assert abs(lengths.mean() - 3.797) < 0.03  # "3.8" in Joshi et al. 2020, 3.1


@pytest.mark.parametrize(("unit", "tolerance"), [("ngram", 0.02), ("span", 0.03)])
def test_masked_runs_have_the_drawn_lengths_where_they_seldom_meet(unit, tolerance):
    rules = MaskingConfig(unit=unit, probability=0.02)
    lengths = drawn_lengths(rules)
    assert lengths.size > 500
    longest = len(length_shares(rules))
    shares = np.bincount(lengths, minlength=longest + 1)[1 : longest + 1] / lengths.size
    # Runs that touch count as one, and the budget cuts the last: hence more than a sampling error.
    assert np.abs(shares - length_shares(rules)).max() < tolerance + 3 / lengths.size**0.5


@pytest.mark.parametrize("rules", [NGRAM, SPAN, MaskingConfig(unit="ngram", max_ngram=5)])
@pytest.mark.parametrize("tokens", [4, 20, 128])
def test_positions_are_unique_and_within_the_amount(rules, tokens):
    rows = text_rows(400, tokens)
    maskable = sum(token >= FIRST_WORD for token in rows[0])
    budget = max(1, int(0.15 * maskable + 0.5))
    for epoch in range(5):
        masked = mask(rows, rules, epoch=epoch)
        counts = np.diff(masked.row_offsets)
        assert (np.diff(masked.positions) > 0).all()
        assert counts.min() >= 1
        longest_word = 8  # one that alone exceeds the budget is chosen whole
        assert counts.max() <= max(budget, longest_word if budget < longest_word else 0)
        assert (masked.masked_lm_ids >= FIRST_WORD).all()
    assert counts.mean() > 0.97 * budget


def test_runs_of_one_token_words_spend_the_whole_budget():
    rows = [[CLS, *[FIRST_WORD] * 60, SEP, *[FIRST_WORD] * 65, SEP]] * 300
    for rules in (NGRAM, SPAN):
        assert (np.diff(mask(rows, rules).row_offsets) == 19).all()


def test_a_run_does_not_cross_a_special_token():
    row = [CLS, FIRST_WORD, SEP, FIRST_WORD, SEP]
    rules = MaskingConfig(unit="span", probability=0.5)  # one token
    chosen = {tuple(positions) for _, positions, _ in by_row([row] * 99, mask([row] * 99, rules))}
    assert chosen == {(1,), (3,)}


def test_every_word_is_equally_likely_to_begin_a_span():
    rows = [[CLS, *[FIRST_WORD] * 40, SEP]] * 20_000
    rules = MaskingConfig(unit="span", probability=0.01)  # one token: the first of one span
    counts = np.bincount(mask(rows, rules).positions % 42, minlength=42)[1:41]
    # Chi-squared with 39 degrees of freedom: 72.1 is exceeded once in a thousand seeds.
    assert ((counts - 500) ** 2 / 500).sum() < 72.1


def test_shares_hold_for_runs_and_random_tokens_are_ordinary():
    for rules in (NGRAM, SPAN):
        masked = mask(text_rows(6000, 128), rules)
        now = masked.input_ids[masked.positions]
        assert abs((now == MASK).mean() - 0.8) < 0.006
        assert abs((now == masked.masked_lm_ids).mean() - 0.1 - 0.1 / 77) < 0.006
        assert (now[now != MASK] >= FIRST_WORD).all()


def test_a_chinese_word_is_masked_as_a_whole_only_with_flags():
    """Each ideograph is a token without ##: two of them make a word that only flags can tell."""
    row = [CLS, *range(FIRST_WORD, FIRST_WORD + 6), SEP]
    starts = [True, True, True, False, True, True, False, True]  # 我 喜欢 弹 琵琶
    rules = MaskingConfig(unit="whole_word", probability=0.3)  # two of six tokens

    def chosen(**words) -> set[tuple[int, ...]]:
        masked = mask([row] * 300, rules, **words)
        return {tuple(positions) for _, positions, _ in by_row([row] * 300, masked)}

    with_flags = chosen(word_starts=np.array(starts * 300))
    assert all((5 in one) == (6 in one) and (2 in one) == (3 in one) for one in with_flags)
    assert chosen() == set(itertools.combinations(range(1, 7), 2))


def test_words_need_pieces_or_flags():
    from pipeline.masking import token_classes

    classes = token_classes(["[MASK]", "\u2581a", "b"], [0])
    for rules in (WHOLE_WORD, NGRAM, SPAN):
        with pytest.raises(ConfigError, match=f"masking.unit = '{rules.unit}': the vocabulary"):
            mask([[1, 2]], rules, classes=classes)
        starts = np.array([True, False])
        assert mask([[1, 2]], rules, classes=classes, word_starts=starts).positions.size == 2


def test_flags_that_do_not_fit_are_refused():
    for starts in (np.ones(3, dtype=np.bool_), np.ones(2, dtype=np.uint8)):
        with pytest.raises(ValueError, match="must be 2 of bool"):
            mask([[FIRST_WORD, FIRST_WORD]], WHOLE_WORD, word_starts=starts)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"unit": "ngram", "amount": "bernoulli"}, 'unit = "ngram" spends a budget'),
        ({"unit": "span", "amount": "bernoulli"}, 'unit = "span" spends a budget'),
        ({"max_ngram": 0}, "masking.max_ngram = 0"),
        ({"max_ngram": 65}, "masking.max_ngram = 65"),
    ],
)
def test_rules_of_runs_out_of_range_are_named(values, message):
    with pytest.raises(ConfigError, match=message):
        MaskingConfig(**values)
