"""Masks: equal to a plain form of the rule, and what training relies on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import MaskingConfig
from pipeline.errors import ConfigError
from pipeline.masking import token_classes
from pipeline.masking.kernels import mask_rows
from tests.pipeline.masking_reference import (
    BERNOULLI,
    CLASSES,
    CLS,
    FIRST_PIECE,
    FIRST_WORD,
    MASK,
    NGRAM,
    PAD,
    SEP,
    SPAN,
    TOKEN,
    UNK,
    VOCABULARY,
    WHOLE_WORD,
    by_row,
    call,
    mask,
    reference_mask,
    text_rows,
    units_of,
)

compiling = settings(deadline=None)  # the first example waits for numba

shares = {"mask_share": st.floats(0, 0.6), "random_share": st.floats(0, 0.4)}
every_rule = st.one_of(
    st.builds(
        MaskingConfig,
        probability=st.floats(0.001, 1.0),
        unit=st.sampled_from(["token", "whole_word"]),
        amount=st.sampled_from(["exact", "bernoulli"]),
        **shares,
    ),
    st.builds(
        MaskingConfig,
        probability=st.floats(0.001, 1.0),
        unit=st.sampled_from(["ngram", "span"]),
        max_ngram=st.integers(1, 6),
        **shares,
    ),
)
rows_of_ids = st.lists(
    st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=40), min_size=1, max_size=6
)


@compiling
@given(
    rows=rows_of_ids,
    rules=every_rule,
    limit=st.integers(0, 5),
    numbers=st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 2**24 - 1),
    repetition=st.integers(0, 255),
)
def test_masks_equal_the_plain_reference(rows, rules, limit, numbers, seed, epoch, repetition):
    if rules.amount == "exact":
        rules = replace(rules, max_predictions_per_seq=limit)
    keys = {"seed": seed, "purpose": "mask", "epoch": epoch, "repetition": repetition}
    masked = mask(rows, rules, numbers=numbers[: len(rows)], **keys)
    assert by_row(rows, masked) == [
        reference_mask(row, number, rules, **keys)
        for row, number in zip(rows, numbers, strict=False)
    ]


@compiling
@given(rows=rows_of_ids, rules=every_rule, seed=st.integers(0, 100))
def test_putting_the_original_ids_back_restores_the_input(rows, rules, seed):
    masked = mask(rows, rules, seed=seed)
    restored = masked.input_ids.copy()
    restored[masked.positions] = masked.masked_lm_ids
    assert restored.tolist() == [token for row in rows for token in row]
    assert not np.isin(masked.masked_lm_ids, range(5)).any()
    assert masked.row_offsets[0] == 0 and masked.row_offsets[-1] == masked.positions.size
    assert (np.diff(masked.positions) > 0).all()  # ascending, none twice


@compiling
@given(
    rows=rows_of_ids,
    rules=every_rule,
    order=st.randoms(use_true_random=False),
)
def test_a_mask_does_not_depend_on_the_batch(rows, rules, order):
    together = by_row(rows, mask(rows, rules))
    alone = [by_row([row], mask([row], rules, numbers=[n]))[0] for n, row in enumerate(rows)]
    assert alone == together
    shuffled = list(range(len(rows)))
    order.shuffle(shuffled)
    moved = [rows[n] for n in shuffled]
    assert by_row(moved, mask(moved, rules, numbers=shuffled)) == [together[n] for n in shuffled]


def test_masks_differ_by_every_part_of_their_key():
    row = text_rows(1, 128)
    keys = [
        {},
        {"seed": 4},
        {"purpose": "evaluation_mask"},
        {"epoch": 1},
        {"epoch": 2**24 - 1},
        {"repetition": 1},
        {"repetition": 255},
        {"epoch": 1, "repetition": 1},
        {"numbers": [1]},
        {"numbers": [1 << 32]},
    ]
    positions = {tuple(mask(row, **key).positions.tolist()) for key in keys}
    assert len(positions) == len(keys)
    for key in keys:
        assert np.array_equal(mask(row, **key).input_ids, mask(row, **key).input_ids)


def test_identical_instances_of_a_batch_are_masked_differently():
    row = text_rows(1, 128)[0]
    positions = {tuple(chosen) for _, chosen, _ in by_row([row] * 50, mask([row] * 50))}
    assert len(positions) == 50


@pytest.mark.parametrize(
    ("maskable", "probability", "limit", "count"),
    [
        (125, 0.15, 0, 19),  # 18.75
        (10, 0.15, 0, 2),  # 1.5: half is rounded up
        (509, 0.15, 0, 76),  # 76.35
        (509, 0.15, 20, 20),
        (509, 0.15, 77, 76),
        (1, 0.15, 0, 1),
        (3, 0.01, 0, 1),
        (0, 0.15, 0, 0),
        (40, 1.0, 0, 40),
    ],
)
def test_an_exact_amount_is_exact_in_every_instance(maskable, probability, limit, count):
    rows = [[CLS, *[FIRST_WORD] * maskable, SEP, SEP, PAD, UNK]] * 30
    rules = MaskingConfig(probability=probability, max_predictions_per_seq=limit)
    assert np.diff(mask(rows, rules).row_offsets).tolist() == [count] * 30


def test_every_position_is_equally_likely():
    rows = text_rows(1, 40) * 37_000
    masked = mask(rows)
    counts = np.bincount(masked.positions % 40, minlength=40)
    maskable = np.array(rows[0]) >= FIRST_WORD
    assert (counts[~maskable] == 0).all()
    expected = masked.positions.size / maskable.sum()
    # Chi-squared with 36 degrees of freedom, times 1 - 6/37 as draws are without replacement.
    assert ((counts[maskable] - expected) ** 2 / expected).sum() < 68 * (1 - 6 / 37)


def test_chosen_tokens_become_80_percent_mask_10_percent_random_10_percent_kept():
    rows = text_rows(55_000, 128)
    masked = mask(rows)
    total = masked.positions.size
    assert total > 1_000_000
    now = masked.input_ids[masked.positions]
    is_mask = now == MASK
    # One random draw in 77 hits the original id.
    kept = ((now == masked.masked_lm_ids).sum() - 0.1 * total / 77) / total
    assert abs(is_mask.mean() - 0.8) < 0.003
    assert abs(kept - 0.1) < 0.003
    assert abs(1 - is_mask.mean() - kept - 0.1) < 0.003
    assert abs((masked.input_ids == MASK).mean() - 0.8 * total / masked.input_ids.size) < 0.001
    flat = np.concatenate([np.array(row, dtype=np.uint16) for row in rows])
    others = np.ones(flat.size, dtype=bool)
    others[masked.positions] = False
    assert np.array_equal(masked.input_ids[others], flat[others])


@pytest.mark.parametrize(("mask_share", "random_share"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_shares_of_nothing_and_of_all_hold_exactly(mask_share, random_share):
    rules = MaskingConfig(mask_share=mask_share, random_share=random_share)
    masked = mask(text_rows(500, 128), rules)
    now = masked.input_ids[masked.positions]
    if mask_share:
        assert (now == MASK).all()
    elif random_share:
        assert (now != MASK).all() and (now != masked.masked_lm_ids).mean() > 0.95
    else:
        assert np.array_equal(now, masked.masked_lm_ids)


def test_random_tokens_are_ordinary_and_uniform():
    """Other implementations draw [PAD], [CLS] or [unused] rows too, 0.4 % of the choices here."""
    masked = mask(text_rows(5000, 128), MaskingConfig(mask_share=0.0, random_share=1.0))
    counts = np.bincount(masked.input_ids[masked.positions], minlength=len(VOCABULARY))
    assert (counts[:FIRST_WORD] == 0).all()
    ordinary = counts[FIRST_WORD:]
    # Chi-squared with 76 degrees of freedom: 119.9 is exceeded once in a thousand seeds.
    assert ((ordinary - ordinary.mean()) ** 2 / ordinary.mean()).sum() < 119.9


@pytest.mark.parametrize("unit", ["token", "whole_word"])
def test_a_bernoulli_amount_has_its_rate_and_varies(unit):
    rows = text_rows(4000, 128)
    masked = mask(rows, replace(BERNOULLI, unit=unit))
    # Tokens of a word are chosen together: the mean is the same, the variance larger.
    assert abs(masked.positions.size / (4000 * 125) - 0.15) < 0.004
    counts = np.diff(masked.row_offsets)
    assert counts.min() < 10 and counts.max() > 28
    assert (np.diff(mask(rows, replace(BERNOULLI, probability=1.0)).row_offsets) == 125).all()


@compiling
@given(rows=rows_of_ids, rules=every_rule, seed=st.integers(0, 100))
def test_words_are_chosen_whole_or_not_at_all(rows, rules, seed):
    rules = replace(rules, unit="whole_word") if rules.unit == "token" else rules
    for row, (_, positions, _) in zip(
        rows, by_row(rows, mask(rows, rules, seed=seed)), strict=True
    ):
        for unit in units_of(row, rules):
            assert len(set(unit) & set(positions)) in (0, len(unit))


def test_whole_words_stay_within_the_budget_and_use_it():
    rows = text_rows(2000, 128)
    counts = np.diff(mask(rows, WHOLE_WORD).row_offsets)
    assert counts.max() == 19
    assert counts.mean() > 18.9  # a single-token word almost always fills the rest
    limited = np.diff(mask(rows, replace(WHOLE_WORD, max_predictions_per_seq=5)).row_offsets)
    assert limited.max() == 5


def test_where_every_word_exceeds_the_budget_one_is_chosen_whole():
    row = [CLS, *[FIRST_WORD, FIRST_PIECE, FIRST_PIECE, FIRST_PIECE] * 3, SEP]
    chosen = {
        tuple(positions) for _, positions, _ in by_row([row] * 200, mask([row] * 200, WHOLE_WORD))
    }
    assert chosen == {(1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12)}


def test_a_piece_after_a_special_token_opens_a_word_of_its_own():
    row = [CLS, FIRST_WORD, SEP, FIRST_PIECE, FIRST_PIECE, SEP]
    rules = replace(WHOLE_WORD, probability=0.6)  # a budget of two tokens
    chosen = {tuple(positions) for _, positions, _ in by_row([row] * 200, mask([row] * 200, rules))}
    assert chosen == {(1,), (3, 4)}


def test_special_tokens_are_never_chosen_in_any_mode():
    rng = np.random.default_rng(8)
    lengths = rng.integers(0, 120, 800)  # padded together, as other collators need it
    rows = [
        ([CLS, *rng.integers(FIRST_WORD, 87, length), SEP] + [PAD] * 128)[:128]
        for length in lengths
    ]
    units = (TOKEN, WHOLE_WORD, NGRAM, SPAN)
    for rules in (*units, BERNOULLI, replace(BERNOULLI, unit="whole_word")):
        for epoch in range(21):
            masked = mask(rows, rules, epoch=epoch)
            assert (masked.masked_lm_ids >= FIRST_WORD).all()
    counts = np.diff(mask(rows).row_offsets)
    assert ((counts == 0) == (lengths == 0)).all()  # at least one wherever one can be


def test_both_id_widths_give_the_same_mask():
    rows = text_rows(50, 64)
    narrow, wide = mask(rows, dtype=np.uint16), mask(rows, dtype=np.uint32)
    assert narrow.input_ids.dtype == narrow.masked_lm_ids.dtype == np.uint16
    assert wide.input_ids.dtype == wide.masked_lm_ids.dtype == np.uint32
    assert np.array_equal(narrow.input_ids, wide.input_ids)
    assert np.array_equal(narrow.positions, wide.positions)
    assert narrow.positions.dtype == narrow.row_offsets.dtype == np.int64


def test_a_slice_of_a_larger_array_is_masked_in_place():
    rows = text_rows(3, 64)
    flat = np.concatenate([np.array(row, dtype=np.uint16) for row in rows])
    last = call(flat, np.array([128, 192], dtype=np.int64), np.array([2], dtype=np.uint64))
    whole = mask(rows)
    assert last.positions.tolist() == whole.positions[whole.positions >= 128].tolist()
    assert np.array_equal(last.input_ids[:128], flat[:128])
    assert np.array_equal(last.input_ids[128:], whole.input_ids[128:])


def test_no_instances_give_no_masks():
    masked = mask([])
    assert masked.input_ids.size == masked.positions.size == masked.masked_lm_ids.size == 0
    assert masked.row_offsets.tolist() == [0]


def test_the_input_is_left_as_it_was():
    flat = np.array(text_rows(1, 64)[0], dtype=np.uint16)
    before = flat.copy()
    mask([flat])
    assert np.array_equal(flat, before)


def test_whole_words_without_continuation_pieces_are_refused():
    classes = token_classes(["[MASK]", "\u2581a", "b"], [0])
    with pytest.raises(ConfigError, match="no ## pieces"):
        mask([[1, 2]], WHOLE_WORD, classes=classes)
    assert mask([[1, 2]], TOKEN, classes=classes).positions.size == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"probability": 0.0}, "masking.probability = 0.0"),
        ({"probability": 1.5}, "masking.probability = 1.5"),
        ({"mask_share": -0.1}, "masking.mask_share = -0.1"),
        ({"random_share": 1.1}, "masking.random_share = 1.1"),
        ({"mask_share": 0.95}, "the shares pass 1"),
        ({"max_predictions_per_seq": -1}, "masking.max_predictions_per_seq = -1"),
        ({"max_predictions_per_seq": 20, "amount": "bernoulli"}, "exact amount only"),
    ],
)
def test_rules_out_of_range_are_named(values, message):
    with pytest.raises(ConfigError, match=message):
        MaskingConfig(**values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 2**24}, "epoch = 16777216"),
        ({"epoch": -1}, "epoch = -1"),
        ({"repetition": 256}, "repetition = 256"),
        ({"repetition": -1}, "repetition = -1"),
    ],
)
def test_an_epoch_or_repetition_without_a_stream_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        mask([[FIRST_WORD]], **changes)


def test_arrays_that_do_not_fit_are_refused():
    ids = np.array([FIRST_WORD], dtype=np.uint16)
    offsets = np.array([0, 1], dtype=np.int64)
    numbers = np.array([0], dtype=np.uint64)
    assert call(ids, offsets, numbers).positions.tolist() == [0]
    with pytest.raises(ValueError, match="the ids belong to another vocabulary"):
        call(ids + len(VOCABULARY), offsets, numbers)
    with pytest.raises(ValueError, match="2 offsets for 2 instances"):
        call(ids, offsets, np.array([0, 1], dtype=np.uint64))
    for unfit in ([0, 5], [-1, 1], [1, 0], []):
        with pytest.raises(ValueError, match="offsets: must rise"):
            call(ids, np.array(unfit, dtype=np.int64), numbers)
    with pytest.raises(ValueError, match="input_ids are int64"):
        call(ids.astype(np.int64), offsets, numbers)
    with pytest.raises(ValueError, match="offsets are int32"):
        call(ids, offsets.astype(np.int32), numbers)
    with pytest.raises(ValueError, match="instance_numbers are int64"):
        call(ids, offsets, numbers.astype(np.int64))


def test_read_only_and_strided_arrays_are_taken_without_another_compilation():
    rows = text_rows(20, 64)
    expected = mask(rows)

    def awkward(array):
        strided = np.repeat(array, 2)[::2]
        strided.flags.writeable = False
        return strided

    masked = call(
        awkward(np.concatenate([np.array(row, dtype=np.uint16) for row in rows])),
        awkward(np.arange(21, dtype=np.int64) * 64),
        awkward(np.arange(20, dtype=np.uint64)),
        replace(
            CLASSES,
            maskable=awkward(CLASSES.maskable),
            continuation=awkward(CLASSES.continuation),
            random_ids=awkward(CLASSES.random_ids),
        ),
    )
    assert np.array_equal(masked.input_ids, expected.input_ids)
    assert masked.input_ids.flags.writeable
    assert len(mask_rows.signatures) <= 2  # one a width of ids
