"""The loader: every instance once, the same batches for everyone, from any point on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import MaskingConfig
from pipeline.contract import ShardEntry
from pipeline.instance_set import InstanceSet
from pipeline.masking import mask_tokens
from pipeline.storage import LocalStorage
from tests.trainer.instance_fixture import SEED, make_row, write_instance_set
from tests.trainer.loading import (
    RULES,
    TRAIN_ROWS,
    SequenceView,
    evaluate,
    global_steps,
    number_of,
    numbers_of,
    open_loader,
    phase_of,
    plain,
    sequences,
    take,
)
from trainer.data.epoch_order import Unit
from trainer.data.phases import set_name
from trainer.data.plan import LoaderState, SourceState


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> InstanceSet:
    """97 training rows in shards of 40, 40 and 17, the last record batch of one row."""
    return write_instance_set(tmp_path_factory.mktemp("set"))


@pytest.mark.parametrize("unit, batch_size", [("sequences", 8), ("sequences", 23), ("tokens", 150)])
@pytest.mark.parametrize("lanes, world_size", [(1, 1), (3, 2), (4, 4), (16, 3)])
def test_at_any_step_every_instance_was_seen_once_in_each_epoch(
    instances: InstanceSet, lanes: int, world_size: int, unit: Unit, batch_size: int
) -> None:
    layout: dict[str, Any] = {"lanes": lanes, "batch_size": batch_size, "unit": unit}
    steps = global_steps(instances, 40, world_size=world_size, **layout)
    states = [step.state_after for step in take(open_loader(instances, **layout), 40)]
    seen = np.zeros(TRAIN_ROWS, dtype=np.int64)
    for step, state in zip(steps, states, strict=True):
        np.add.at(seen, [number_of(one) for one in step], 1)
        (source,) = state.sources
        # Lanes give whole rows, so that a token's epoch is that of its row.
        assert set(seen) <= {source.epoch, source.epoch + 1}
        assert source.cursor > 0 or set(seen) == {source.epoch}
        if unit == "sequences":
            assert len(step) == batch_size
            assert seen.sum() == source.epoch * TRAIN_ROWS + source.cursor
    assert states[-1].sources[0].epoch >= 2


def test_batches_by_tokens_keep_to_their_budget_and_never_drift(instances: InstanceSet) -> None:
    budget, lanes, longest = 150, 4, 30
    given = 0
    layout: dict[str, Any] = {"unit": "tokens", "batch_size": budget, "micro_batch_size": 40}
    for number, step in enumerate(take(open_loader(instances, lanes=lanes, **layout), 60)):
        tokens = [batch.input_ids.size for batch in step.micro_batches]
        assert max(tokens) <= 40
        given += sum(tokens)
        # What was begun is given whole, and an epoch ends with its last row.
        assert abs(given - (number + 1) * budget) < 2 * lanes * longest


@pytest.mark.parametrize("lanes", [4, 8])
@pytest.mark.parametrize("unit", ["sequences", "tokens"])
def test_an_epoch_reads_its_bytes_once_and_few_shards_twice(
    tmp_path: Path, lanes: int, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = (90, 70, 85, 100, 60, 75)
    uneven = write_instance_set(tmp_path, train=sizes, rows_per_batch=4)
    reads: list[tuple[int, str, int]] = []
    rank = 0
    read_range = LocalStorage.read_range

    def counted(self: LocalStorage, name: str, offset: int, length: int) -> bytes:
        data = read_range(self, name, offset, length)
        reads.append((rank, name, len(data)))
        return data

    monkeypatch.setattr(LocalStorage, "read_range", counted)
    monkeypatch.setattr("trainer.loader._CHUNK_ROWS", 1)
    monkeypatch.setattr("trainer.loader._CHUNK_ROWS_PER_LANE", 1)
    shards = uneven.shards("train")
    units = sum(shard.rows if unit == "sequences" else shard.tokens for shard in shards)
    batch_size = 16 if unit == "sequences" else 400
    for ranks in (1, 2, 4):
        reads.clear()
        found = set()
        for rank in range(ranks):
            phase = phase_of(uneven, batch_size=batch_size, unit=unit, steps=units // batch_size)
            layout: dict[str, Any] = {"lanes": lanes, "rank": rank, "world_size": ranks}
            with open_loader([phase], read_ahead_bytes=1, **layout) as loader:
                for step in loader:
                    assert step.micro_batches  # no rank is idle
                    found |= {number_of(one) for one in sequences(step.micro_batches)}
        assert len(found) > sum(sizes) - 20
        assert sum(size for _, _, size in reads) <= 1.1 * sum(one.object.bytes for one in shards)
        by_shard = [
            {reader for reader, name, _ in reads if name.endswith(shard.object.name)}
            for shard in shards
        ]
        if lanes <= len(sizes):
            # One record batch of the next epoch may have been read ahead.
            assert sum(len(one) - 1 for one in by_shard) <= 2 * ranks - 1


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("window_batches", [1, 3])
@pytest.mark.parametrize("unit, batch_size", [("sequences", 11), ("tokens", 130)])
def test_the_global_batch_of_every_step_is_the_same_for_any_world_size(
    instances: InstanceSet, world_size: int, window_batches: int, unit: Unit, batch_size: int
) -> None:
    layout: dict[str, Any] = {
        "window_batches": window_batches,
        "unit": unit,
        "batch_size": batch_size,
    }
    alone = global_steps(instances, 25, world_size=1, **layout)
    together = global_steps(instances, 25, world_size=world_size, **layout)
    # Where an epoch ends inside a step, each rank has rows of both epochs.
    assert [sorted(step) for step in together] == [sorted(step) for step in alone]


@pytest.mark.parametrize(
    "layout",
    [
        {"prefetch": 1, "micro_batch_size": 1},
        {"prefetch": 5, "micro_batch_size": 100},
        {"read_threads": 1, "read_ahead_bytes": 1},
        {"read_threads": 4, "read_ahead_bytes": 10**9},
    ],
)
def test_how_batches_are_made_changes_nothing(
    instances: InstanceSet, layout: dict[str, int]
) -> None:
    expected = global_steps(instances, 20, world_size=1)
    assert global_steps(instances, 20, world_size=1, **layout) == expected


def test_micro_batches_have_at_most_their_size(instances: InstanceSet) -> None:
    for step in take(open_loader(instances, micro_batch_size=3), 12):
        sizes = [batch.cu_seqlens.size - 1 for batch in step.micro_batches]
        assert sizes == [3, 3, 2]


@pytest.mark.parametrize("world_size, rank", [(1, 0), (3, 1)])
@pytest.mark.parametrize("unit, batch_size", [("sequences", 8), ("tokens", 170)])
def test_restored_at_every_step_it_goes_on_as_if_undisturbed(
    instances: InstanceSet, world_size: int, rank: int, unit: Unit, batch_size: int
) -> None:
    # Two epochs and a bit, so that restores within epoch 1 and at its ends are among them.
    steps = 2 * TRAIN_ROWS // 8 + 2
    layout: dict[str, Any] = {
        "world_size": world_size,
        "rank": rank,
        "unit": unit,
        "batch_size": batch_size,
    }
    undisturbed = plain(take(open_loader(instances, **layout), steps + 3))
    assert undisturbed[-1][2].sources[0].epoch == 2
    for done in range(1, steps):
        state = LoaderState.from_json(undisturbed[done - 1][2].to_json())
        resumed = plain(take(open_loader(instances, state=state, **layout), 4))
        assert resumed == undisturbed[done : done + 4], f"after step {done}"


@settings(max_examples=25, deadline=None)
@given(
    before=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    lanes=st.integers(3, 9),
    batch_size=st.integers(3, 40),
    window_batches=st.integers(1, 5),
    chunk_rows=st.integers(1, 60),
)
def test_any_chain_of_restarts_at_any_world_sizes_sees_what_one_run_sees(
    instances: InstanceSet,
    before: list[int],
    lanes: int,
    batch_size: int,
    window_batches: int,
    chunk_rows: int,
) -> None:
    layout: dict[str, Any] = {
        "lanes": lanes,
        "batch_size": batch_size,
        "window_batches": window_batches,
    }
    undisturbed = global_steps(instances, sum(before), world_size=1, **layout)
    state, found = None, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.loader._CHUNK_ROWS", chunk_rows)
        patch.setattr("trainer.loader._CHUNK_ROWS_PER_LANE", 1)
        for attempt, steps in enumerate(before):
            at = {**layout, "state": state}
            found += global_steps(instances, steps, world_size=1 + attempt % 3, **at)
            if steps:
                state = take(open_loader(instances, **at), steps)[-1].state_after
    assert [sorted(step) for step in found] == [sorted(step) for step in undisturbed]


def test_resumed_at_another_world_size_the_run_sees_the_same_rest(instances: InstanceSet) -> None:
    undisturbed = global_steps(instances, 12, world_size=4)
    state = take(open_loader(instances, world_size=4, rank=3), 8)[-1].state_after
    for world_size in (1, 2, 3):
        assert global_steps(instances, 4, world_size=world_size, state=state) == undisturbed[8:]


def test_a_restart_reads_at_most_one_window_a_lane_before_its_first_step(
    instances: InstanceSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = take(open_loader(instances, window_batches=1, batch_size=4), 20)[-1].state_after
    reads = []
    read_message = InstanceSet.read_message

    def counted(self: InstanceSet, shard: ShardEntry, number: int) -> bytes:
        reads.append((shard.object.name, number))
        return read_message(self, shard, number)

    monkeypatch.setattr(InstanceSet, "read_message", counted)
    monkeypatch.setattr("trainer.loader._CHUNK_ROWS", 1)
    monkeypatch.setattr("trainer.loader._CHUNK_ROWS_PER_LANE", 1)
    layout: dict[str, Any] = {"prefetch": 1, "read_ahead_bytes": 1}
    take(open_loader(instances, window_batches=1, batch_size=4, state=state, **layout), 0)
    # Four lanes with windows of one record batch; a lane at a window's very end opens the next,
    # and one is read ahead.
    assert 1 <= len(reads) <= 5


def epoch_numbers(instance_set: InstanceSet, epoch: int, seed: int) -> list[int]:
    name = set_name(instance_set)
    state = LoaderState(
        phase=0, step=0, sources=(SourceState(instances=name, epoch=epoch, cursor=0),)
    )
    return numbers_of(global_steps(instance_set, 12, world_size=1, seed=seed, state=state))


def test_order_differs_by_epoch_and_repeats_by_seed_and_epoch(instances: InstanceSet) -> None:
    orders = {
        (seed, epoch): epoch_numbers(instances, epoch, seed)
        for seed in (7, 8)
        for epoch in (0, 1, 2)
    }
    assert len({tuple(order) for order in orders.values()}) == len(orders)
    for (seed, epoch), order in orders.items():
        assert epoch_numbers(instances, epoch, seed) == order


def expected_mask(number: int, instances: InstanceSet, epoch: int, rules: MaskingConfig) -> Any:
    ids = np.array(make_row(number).input_ids, dtype=np.uint16)
    masked = mask_tokens(
        ids,
        np.array([0, ids.size]),
        np.array([number], dtype=np.uint64),
        seed=SEED,
        purpose="mask",
        epoch=epoch,
        repetition=0,
        rules=rules,
        classes=instances.token_classes,
    )
    return tuple(masked.input_ids.tolist()), tuple(masked.positions.tolist())


def test_an_instance_has_the_mask_of_seed_epoch_and_its_number(instances: InstanceSet) -> None:
    seen = 0
    # Within a step too the rows of one epoch come first.
    for step in take(open_loader(instances), 2 * TRAIN_ROWS // 8):
        for one in sequences(step.micro_batches):
            mask = expected_mask(number_of(one), instances, seen // TRAIN_ROWS, RULES)
            assert (one[0], one[2]) == mask
            seen += 1
    assert seen // TRAIN_ROWS == 1


def test_static_shards_bring_their_masks_and_keep_them_over_epochs(tmp_path: Path) -> None:
    rules = MaskingConfig(probability=0.3)
    static = write_instance_set(tmp_path, static_rules=rules)
    masks: dict[int, set[SequenceView]] = {}
    for step in take(open_loader(static), 2 * TRAIN_ROWS // 8):
        for one in sequences(step.micro_batches):
            masks.setdefault(number_of(one), set()).add(one)
    assert len(masks) == TRAIN_ROWS
    held_out = sequences(list(evaluate(static, world_size=1, rank=0)))
    assert [number_of(one) for one in held_out] == list(range(TRAIN_ROWS, TRAIN_ROWS + 21))
    for seen in [*masks.values(), *({one} for one in held_out)]:
        (one,) = seen
        assert (one[0], one[2]) == expected_mask(number_of(one), static, 0, rules)
