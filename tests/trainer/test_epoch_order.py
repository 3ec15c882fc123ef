"""The order of an epoch: lanes and windows divide its rows, and few shards are shared."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trainer.data.epoch_order import EpochOrder, LaneOrder, RecordBatches, Unit, spread_of, turns


class Rows:
    """Record batches of rows of so many tokens, and the order over them."""

    def __init__(self, shards: list[list[list[int]]]) -> None:
        batches = [
            (index, number, tokens)
            for index, shard in enumerate(shards)
            for number, tokens in enumerate(shard)
        ]
        self.tokens = [np.array(tokens, dtype=np.int64) for _, _, tokens in batches]
        self.table = RecordBatches(
            shard=np.array([index for index, _, _ in batches]),
            number=np.array([number for _, number, _ in batches]),
            rows=np.array([len(tokens) for _, _, tokens in batches]),
            tokens=np.array([sum(tokens) for _, _, tokens in batches]),
            first_instance=np.zeros(len(batches), dtype=np.int64),
        )

    def order(self, **settings: Any) -> EpochOrder:
        return EpochOrder.of(self.table, row_tokens=self.tokens.__getitem__, **settings)

    def units(self, lane: LaneOrder, window: int, unit: Unit) -> NDArray[np.int64]:
        """The units of each row of a window, before they are shuffled."""
        parts = [
            self.tokens[lane.batch[at]][lane.start[at] : lane.end[at]]
            for at in lane.segments(window)
        ]
        tokens = np.concatenate(parts)
        return tokens if unit == "tokens" else np.ones_like(tokens)


def equal_shards(shards: int, batches: int, rows: int) -> Rows:
    return Rows([[[1] * rows] * batches] * shards)


@settings(max_examples=80, deadline=None)
@given(
    shards=st.lists(
        st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=7), min_size=1, max_size=6),
        min_size=1,
        max_size=9,
    ),
    lanes=st.integers(1, 12),
    window_batches=st.integers(1, 4),
    epoch=st.integers(0, 3),
    unit=st.sampled_from(["sequences", "tokens"]),
)
def test_lanes_and_windows_divide_the_rows(
    shards: list[list[list[int]]], lanes: int, window_batches: int, epoch: int, unit: Unit
) -> None:
    rows = Rows(shards)
    order = rows.order(seed=1, epoch=epoch, lanes=lanes, window_batches=window_batches, unit=unit)
    owned = []
    for number in range(lanes):
        lane = order.lane(number)
        total = 0
        for window in range(lane.windows):
            assert 1 <= len(lane.segments(window)) <= window_batches
            assert lane.units[window] == total
            units = rows.units(lane, window, unit)
            for at in range(total, total + int(units.sum())):
                assert lane.window_from(at) == window
            total += int(units.sum())
            permuted, turns_of = order.window_rows(number, lane, window, units)
            assert sorted(permuted) == list(range(units.size))
            assert (np.diff(turns_of) >= 0).all()
            assert lane.units[window] == turns_of[0] <= turns_of[-1] < lane.units[window + 1]
        assert lane.units[-1] == total and lane.window_from(total) == lane.windows
        for batch, start, end in zip(lane.batch, lane.start, lane.end, strict=True):
            owned += [(int(batch), row) for row in range(start, end)]
        # Equal within a row, whose units are one, or at most nine tokens.
        assert abs(total - order.total / lanes) < 1 + (9 if unit == "tokens" else 0)
    everything = [(at, row) for at, count in enumerate(rows.table.rows) for row in range(count)]
    assert sorted(owned) == everything


@settings(max_examples=60, deadline=None)
@given(lanes=st.integers(1, 70), sizes=st.lists(st.integers(0, 90), min_size=1, max_size=9))
def test_every_lane_gives_its_turns_of_each_step(lanes: int, sizes: list[int]) -> None:
    spread = spread_of(lanes)
    assert sorted(spread) == list(range(lanes))
    ends = np.cumsum([0, *sizes])
    given_by = np.array([turns(ends, spread[lane : lane + 1], lanes) for lane in range(lanes)])
    assert (given_by.sum(axis=0) == ends).all()
    of_step = np.diff(given_by, axis=1)
    assert (of_step >= 0).all()
    assert (of_step.max(axis=0) - of_step.min(axis=0) <= 1).all()


@pytest.mark.parametrize("world_size", [2, 4, 8, 16])
def test_a_batch_smaller_than_the_lanes_is_divided_evenly_over_the_ranks(world_size: int) -> None:
    by_rank = spread_of(64).reshape(world_size, -1)
    for first in range(0, 64, world_size):
        in_step = (by_rank >= first) & (by_rank < first + world_size)
        assert in_step.sum(axis=1).tolist() == [1] * world_size


def readers(order: EpochOrder, lanes: int, ranks: int) -> tuple[list[set[int]], int]:
    """The ranks that read each shard, and how many record batches are read in all."""
    shards: list[set[int]] = [set() for _ in np.unique(order.table.shard)]
    reads = 0
    for rank in range(ranks):
        own = range(lanes * rank // ranks, lanes * (rank + 1) // ranks)
        batches, _ = order.reads(own, 0)
        reads += batches.size
        for batch in batches:
            shards[order.table.shard[batch]].add(rank)
    return shards, reads


@pytest.mark.parametrize("unit", ["sequences", "tokens"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 16])
def test_ranks_share_no_more_shards_than_there_are_borders_between_them(
    ranks: int, unit: Unit
) -> None:
    draw = np.random.default_rng(5)
    shards = [
        [draw.integers(1, 60, 32).tolist()] * int(batches) for batches in draw.integers(5, 20, 50)
    ]
    rows = Rows(shards)
    order = rows.order(seed=3, epoch=1, lanes=16, window_batches=4, unit=unit)
    by_shard, reads = readers(order, 16, ranks)
    assert sum(len(one) - 1 for one in by_shard) <= ranks - 1
    assert reads <= rows.table.rows.size + ranks - 1


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_equal_shards_as_many_as_a_multiple_of_lanes_have_one_reader_each(ranks: int) -> None:
    rows = equal_shards(shards=24, batches=6, rows=10)
    order = rows.order(seed=3, epoch=0, lanes=8, window_batches=4, unit="sequences")
    by_shard, reads = readers(order, 8, ranks)
    assert [len(one) for one in by_shard] == [1] * 24
    assert reads == 24 * 6


def test_few_shards_are_dealt_by_record_batch() -> None:
    rows = equal_shards(shards=3, batches=40, rows=10)
    order = rows.order(seed=3, epoch=0, lanes=8, window_batches=4, unit="sequences")
    for number in range(8):
        assert len(set(rows.table.shard[order.lane(number).batch])) > 1


def test_lanes_open_their_windows_at_different_times() -> None:
    rows = equal_shards(shards=64, batches=16, rows=4)
    order = rows.order(seed=3, epoch=0, lanes=8, window_batches=8, unit="sequences")
    second = [int(order.lane(number).units[1]) for number in range(8)]
    assert sorted(second) == [4 * batches for batches in range(1, 9)]


def test_shards_lanes_and_windows_change_from_epoch_to_epoch_and_repeat_by_seed() -> None:
    rows = equal_shards(shards=20, batches=6, rows=10)

    def lane_of(seed: int, epoch: int) -> tuple[int, ...]:
        order = rows.order(seed=seed, epoch=epoch, lanes=4, window_batches=3, unit="sequences")
        lane = order.lane(1)
        first, _ = order.window_rows(1, lane, 0, np.ones(30, dtype=np.int64))
        return (*lane.batch.tolist(), *first.tolist())

    orders = {one: lane_of(*one) for one in itertools.product((7, 8), (0, 1, 2))}
    assert len(set(orders.values())) == len(orders)
    assert all(lane_of(*one) == found for one, found in orders.items())
