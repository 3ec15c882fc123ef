"""Short and long rows by turns: still a random order, and equal parts for every run of lanes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trainer.data.balanced_order import STRATA, balanced
from trainer.data.epoch_order import spread_of


@settings(max_examples=100, deadline=None)
@given(
    tokens=st.lists(st.integers(1, 40), min_size=0, max_size=90),
    first=st.integers(0, 40),
    seed=st.integers(0, 5),
)
def test_every_row_comes_once_and_each_turn_gets_its_part_of_the_lengths(
    tokens: list[int], first: int, seed: int
) -> None:
    row_tokens = np.array(tokens, dtype=np.int64)
    order = np.random.default_rng(seed).permutation(row_tokens.size)
    turns = first + np.arange(row_tokens.size)
    found = balanced(order, row_tokens, turns)
    assert sorted(found) == list(range(row_tokens.size))
    if len(set(tokens)) < 2:
        assert found.tolist() == order.tolist()
        return
    lengths = [row_tokens[found[turns % STRATA == turn]].tolist() for turn in range(STRATA)]
    ranges = sorted((min(one), max(one)) for one in lengths if one)
    # The strata do not overlap but for equal lengths at their borders.
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ranges))


def test_rows_of_one_stratum_keep_the_random_order_they_had() -> None:
    draw = np.random.default_rng(1)
    row_tokens = np.repeat([5, 9], 320)
    order = draw.permutation(640)
    found = balanced(order, row_tokens, np.arange(640))
    # Half of the turns have the short rows: which of their strata a row is in is chance.
    early = [row for row in order[:320] if row < 320]
    assert 0.3 < np.isin(found[:320], early).sum() / len(early) < 0.7
    assert np.corrcoef(found[found < 320], np.arange(320))[0, 1] < 0.2


def tokens_of(kind: str, rows: int, draw: np.random.Generator) -> NDArray[np.int64]:
    if kind == "any length":
        return draw.integers(8, 129, rows)
    return np.where(draw.random(rows) < 1 / 3, draw.integers(8, 129, rows), 128)


@pytest.mark.parametrize("kind", ["any length", "a third short"])
@pytest.mark.parametrize("share", [4, 16])
def test_ranks_have_nearly_equal_tokens_of_every_step(kind: str, share: int) -> None:
    lanes, rows = 64, 2048
    draw = np.random.default_rng(3)
    steps = []
    at_random = []
    for place in spread_of(lanes):
        tokens = tokens_of(kind, rows, draw)
        order = draw.permutation(rows)
        turns = np.arange(rows) + place * STRATA // lanes
        steps.append(tokens[balanced(order, tokens, turns)].reshape(-1, share).sum(axis=1))
        at_random.append(tokens[order].reshape(-1, share).sum(axis=1))

    def fullest(of_lanes: list[NDArray[np.int64]], ranks: int) -> float:
        of_ranks = np.array(of_lanes).reshape(ranks, lanes // ranks, -1).sum(axis=1)
        return float((of_ranks.max(axis=0) / of_ranks.mean(axis=0)).mean())

    for ranks, limit in ((2, 1.004), (8, 1.015)):
        assert fullest(steps, ranks) < limit < fullest(at_random, ranks)
    totals = np.array(steps).sum(axis=0)
    assert totals.std() / totals.mean() < 0.006
