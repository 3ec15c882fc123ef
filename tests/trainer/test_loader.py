"""The loader: every instance once, the same batches for everyone, from any point on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import MaskingConfig
from pipeline.contract import ShardEntry
from pipeline.instance_rows import InstanceRows
from pipeline.instance_set import InstanceSet
from pipeline.masking import mask_tokens
from tests.trainer.instance_fixture import NUMBER_TOKENS, SEED, make_row, write_instance_set
from trainer.batch import Batch, check_batch
from trainer.epoch_order import EpochOrder, RecordBatches, sequences_in_step, steps_in_epoch
from trainer.loader import Loader, LoaderState, StepBatches, evaluation_batches

RULES = MaskingConfig()
TRAIN_ROWS = 97


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> InstanceSet:
    """97 training rows in shards of 40, 40 and 17, the last record batch of one row."""
    return write_instance_set(tmp_path_factory.mktemp("set"))


def open_loader(
    instance_set: InstanceSet,
    *,
    lanes: int = 4,
    batch_size: int = 8,
    window_batches: int = 2,
    micro_batch_size: int = 3,
    rank: int = 0,
    world_size: int = 1,
    state: LoaderState | None = None,
    prefetch: int = 2,
    rules: MaskingConfig = RULES,
    seed: int = SEED,
) -> Loader:
    return Loader(
        instance_set,
        seed=seed,
        rules=rules,
        lanes=lanes,
        window_batches=window_batches,
        batch_size=batch_size,
        micro_batch_size=micro_batch_size,
        rank=rank,
        world_size=world_size,
        state=state,
        prefetch=prefetch,
    )


SequenceView = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int]


def sequences(batches: Sequence[Batch]) -> list[SequenceView]:
    """Everything a model sees of each sequence: ids, types, masked positions and ids, label."""
    found = []
    for batch in batches:
        check_batch(batch, vocab_size=100, max_seq_length=64, type_vocab_size=2)
        assert batch.pair_labels is not None
        for row, (start, end) in enumerate(itertools.pairwise(batch.cu_seqlens.tolist())):
            inside = (batch.masked_positions >= start) & (batch.masked_positions < end)
            found.append(
                (
                    tuple(batch.input_ids[start:end].tolist()),
                    tuple(batch.token_type_ids[start:end].tolist()),
                    tuple((batch.masked_positions[inside] - start).tolist()),
                    tuple(batch.masked_lm_ids[inside].tolist()),
                    int(batch.pair_labels[row]),
                )
            )
    return found


def number_of(sequence: SequenceView) -> int:
    """The instance number its unmasked first tokens spell; all its columns are checked."""
    ids, types, positions, masked_ids, label = sequence
    restored = list(ids)
    for position, token in zip(positions, masked_ids, strict=True):
        restored[position] = token
    number = int("".join(str(token - 5) for token in restored[1 : 1 + NUMBER_TOKENS]))
    row = make_row(number)
    assert tuple(restored) == row.input_ids
    assert types == tuple(int(at >= row.first_segment_length) for at in range(len(ids)))
    assert label == row.next_sentence_label
    return number


def take(loader: Loader, steps: int) -> list[StepBatches]:
    with loader:
        return list(itertools.islice(loader, steps))


def global_steps(
    instance_set: InstanceSet, steps: int, *, world_size: int, **layout: Any
) -> list[list[SequenceView]]:
    """The global batch of each step as the ranks' parts in order of rank."""
    ranks = [
        take(open_loader(instance_set, rank=rank, world_size=world_size, **layout), steps)
        for rank in range(world_size)
    ]
    return [
        [one for step in parts for one in sequences(step.micro_batches)]
        for parts in zip(*ranks, strict=True)
    ]


@pytest.mark.parametrize("lanes", [1, 3, 4, 16])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("share", [1, 3])
def test_an_epoch_has_every_instance_exactly_once(
    instances: InstanceSet, lanes: int, world_size: int, share: int
) -> None:
    world_size = min(world_size, lanes)
    layout: dict[str, Any] = {"lanes": lanes, "batch_size": lanes * share}
    steps = steps_in_epoch(TRAIN_ROWS, **layout)
    for_steps = global_steps(instances, 2 * steps, world_size=world_size, **layout)
    numbers = [[number_of(one) for one in step] for step in for_steps]
    for epoch in (numbers[:steps], numbers[steps:]):
        assert sorted(itertools.chain.from_iterable(epoch)) == list(range(TRAIN_ROWS))
        assert all(len(step) == lanes * share for step in epoch[:-2])
        assert all(len(step) > 0 for step in epoch)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=4),
    lanes=st.integers(1, 12),
    share=st.integers(1, 5),
    window_batches=st.integers(1, 4),
    epoch=st.integers(0, 3),
)
def test_lanes_and_windows_divide_the_rows(
    sizes: list[list[int]], lanes: int, share: int, window_batches: int, epoch: int
) -> None:
    rows = np.array([row for shard in sizes for row in shard if row > 0], dtype=np.int64)
    if rows.size == 0:
        return
    nothing = np.zeros(rows.size, dtype=np.int64)
    table = RecordBatches(shard=nothing, number=nothing, rows=rows, first_instance=nothing)
    order = EpochOrder.of(table, seed=1, epoch=epoch, lanes=lanes, window_batches=window_batches)
    total = int(rows.sum())
    seen = []
    for lane in range(lanes):
        start, end = order.lane_rows(lane)
        assert total // lanes <= end - start <= total // lanes + 1
        for row in range(start, end):
            window = order.window_at(lane, row)
            assert start <= window.start <= row < window.end <= end
            assert 1 <= len(window.places) <= window_batches
            assert order.places_from(lane, row)[: len(window.places)] == window.places
            assert sorted(window.order) == list(range(window.end - window.start))
            seen.append(window.start + int(window.order[row - window.start]))
    assert sorted(seen) == list(range(total))
    batch_size = lanes * share
    steps = steps_in_epoch(total, lanes=lanes, batch_size=batch_size)
    counts = [
        sequences_in_step(total, lanes=lanes, batch_size=batch_size, step=step)
        for step in range(steps + 1)
    ]
    assert sum(counts) == total
    assert min(counts[:-1]) > 0 and counts[-1] == 0


def test_lanes_are_read_by_one_rank_each_and_record_batches_once_a_rank(
    instances: InstanceSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[tuple[str, int]] = []
    read_rows = InstanceSet.read_rows

    def counted(self: InstanceSet, shard: ShardEntry, number: int) -> InstanceRows:
        reads.append((shard.object.name, number))
        return read_rows(self, shard, number)

    monkeypatch.setattr(InstanceSet, "read_rows", counted)
    record_batches = 5 + 5 + 3
    for world_size in (1, 2, 4):
        for window_batches in (1, 3):
            reads.clear()
            steps = steps_in_epoch(TRAIN_ROWS, lanes=8, batch_size=16)
            for rank in range(world_size):
                loader = open_loader(
                    instances,
                    lanes=8,
                    batch_size=16,
                    window_batches=window_batches,
                    rank=rank,
                    world_size=world_size,
                    prefetch=1,
                )
                # The thread is one step ahead; the last step's successor opens epoch 1.
                take(loader, steps - 1)
            assert len(set(reads)) == record_batches
            assert len(reads) <= record_batches + world_size - 1


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("window_batches", [1, 3])
def test_the_global_batch_of_every_step_is_the_same_for_any_world_size(
    instances: InstanceSet, world_size: int, window_batches: int
) -> None:
    steps = 2 * steps_in_epoch(TRAIN_ROWS, lanes=4, batch_size=8) + 3
    layout = {"window_batches": window_batches}
    alone = global_steps(instances, steps, world_size=1, **layout)
    assert global_steps(instances, steps, world_size=world_size, **layout) == alone


def test_prefetch_and_micro_batch_size_change_nothing(instances: InstanceSet) -> None:
    expected = global_steps(instances, 20, world_size=1)
    for prefetch in (1, 5):
        for size in (1, 8, 100):
            layout = {"prefetch": prefetch, "micro_batch_size": size}
            assert global_steps(instances, 20, world_size=1, **layout) == expected


def test_micro_batches_have_at_most_their_size(instances: InstanceSet) -> None:
    for step in take(open_loader(instances, micro_batch_size=3), 12):
        sizes = [batch.cu_seqlens.size - 1 for batch in step.micro_batches]
        assert sizes == [3, 3, 2]
        assert step.sequences == 8


def plain(steps: Sequence[StepBatches]) -> list[tuple[object, int, LoaderState]]:
    return [
        (tuple(sequences(step.micro_batches)), step.sequences, step.state_after) for step in steps
    ]


@pytest.mark.parametrize("world_size, rank", [(1, 0), (3, 1)])
def test_restored_at_every_step_it_goes_on_as_if_undisturbed(
    instances: InstanceSet, world_size: int, rank: int
) -> None:
    # Two epochs and a bit, so that restores within epoch 1 and at its ends are among them.
    steps = 2 * steps_in_epoch(TRAIN_ROWS, lanes=4, batch_size=8) + 2
    layout: dict[str, Any] = {"world_size": world_size, "rank": rank}
    undisturbed = plain(take(open_loader(instances, **layout), steps + 3))
    for done in range(1, steps):
        state = LoaderState.from_json(undisturbed[done - 1][2].to_json())
        resumed = plain(take(open_loader(instances, state=state, **layout), 4))
        assert resumed == undisturbed[done : done + 4], f"after step {done}"


def test_resumed_at_another_world_size_the_run_sees_the_same_rest(instances: InstanceSet) -> None:
    undisturbed = global_steps(instances, 20, world_size=4)
    state = take(open_loader(instances, world_size=4, rank=3), 15)[-1].state_after
    for world_size in (1, 2, 3):
        assert global_steps(instances, 5, world_size=world_size, state=state) == undisturbed[15:]


def test_a_restart_reads_at_most_one_window_a_lane_before_its_first_step(
    instances: InstanceSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = take(open_loader(instances, window_batches=1, batch_size=4), 20)[-1].state_after
    reads = []
    read_rows = InstanceSet.read_rows

    def counted(self: InstanceSet, shard: ShardEntry, number: int) -> InstanceRows:
        reads.append((shard.object.name, number))
        return read_rows(self, shard, number)

    monkeypatch.setattr(InstanceSet, "read_rows", counted)
    monkeypatch.setattr("trainer.loader._CHUNK_ROWS", 1)
    monkeypatch.setattr("trainer.loader._CHUNK_ROWS_PER_LANE", 1)
    take(open_loader(instances, window_batches=1, batch_size=4, state=state, prefetch=1), 0)
    # Four lanes with windows of one record batch; a lane at a window's very end opens the next.
    assert 1 <= len(reads) <= 4


def epoch_numbers(instance_set: InstanceSet, epoch: int, seed: int) -> list[int]:
    fingerprint = instance_set.generation.fingerprint
    state = LoaderState(epoch=epoch, step=0, instances=fingerprint)
    steps = take(open_loader(instance_set, seed=seed, state=state), 12)
    return [number_of(one) for step in steps for one in sequences(step.micro_batches)]


def test_order_differs_by_epoch_and_repeats_by_seed_and_epoch(instances: InstanceSet) -> None:
    orders = {
        (seed, epoch): epoch_numbers(instances, epoch, seed)
        for seed in (7, 8)
        for epoch in (0, 1, 2)
    }
    assert len({tuple(order) for order in orders.values()}) == len(orders)
    for (seed, epoch), order in orders.items():
        assert epoch_numbers(instances, epoch, seed) == order


def test_an_instance_has_the_mask_of_seed_epoch_and_its_number(instances: InstanceSet) -> None:
    steps = steps_in_epoch(TRAIN_ROWS, lanes=4, batch_size=8)
    for epoch, ordinal in ((0, 0), (1, steps)):
        for one in sequences(take(open_loader(instances), steps + 1)[ordinal].micro_batches):
            number = number_of(one)
            ids = np.array(make_row(number).input_ids, dtype=np.uint16)
            expected = mask_tokens(
                ids,
                np.array([0, ids.size]),
                np.array([number], dtype=np.uint64),
                seed=SEED,
                purpose="mask",
                epoch=epoch,
                repetition=0,
                rules=RULES,
                classes=instances.token_classes,
            )
            assert one[0] == tuple(expected.input_ids.tolist())
            assert one[2] == tuple(expected.positions.tolist())


def evaluate(
    instance_set: InstanceSet,
    *,
    world_size: int,
    rank: int,
    batch_size: int = 5,
    max_instances: int | None = None,
) -> Iterator[Batch]:
    return evaluation_batches(
        instance_set,
        seed=SEED,
        rules=RULES,
        rank=rank,
        world_size=world_size,
        batch_size=batch_size,
        max_instances=max_instances,
    )


def test_static_shards_bring_their_masks_and_keep_them_over_epochs(tmp_path: Path) -> None:
    rules = MaskingConfig(probability=0.3)
    static = write_instance_set(tmp_path, static_rules=rules)
    steps = steps_in_epoch(TRAIN_ROWS, lanes=4, batch_size=8)
    masks: list[dict[int, SequenceView]] = [{}, {}]
    for ordinal, step in enumerate(take(open_loader(static), 2 * steps)):
        for one in sequences(step.micro_batches):
            masks[ordinal // steps][number_of(one)] = one
    assert len(masks[0]) == TRAIN_ROWS and masks[0] == masks[1]
    held_out = sequences(list(evaluate(static, world_size=1, rank=0)))
    assert [number_of(one) for one in held_out] == list(range(TRAIN_ROWS, TRAIN_ROWS + 21))
    for one in [*masks[0].values(), *held_out]:
        number = number_of(one)
        ids = np.array(make_row(number).input_ids, dtype=np.uint16)
        expected = mask_tokens(
            ids,
            np.array([0, ids.size]),
            np.array([number], dtype=np.uint64),
            seed=SEED,
            purpose="mask",
            epoch=0,
            repetition=0,
            rules=rules,
            classes=static.token_classes,
        )
        assert one[0] == tuple(expected.input_ids.tolist())
        assert one[2] == tuple(expected.positions.tolist())
