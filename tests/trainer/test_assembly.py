"""Columns that only some sets have: word_starts reach the masks, and pairs may be missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.config import MaskingConfig
from pipeline.instance_rows import InstanceRows
from pipeline.masking import mask_tokens, token_classes
from tests.trainer.instance_fixture import (
    SEED,
    VOCABULARY,
    commit_instances,
    make_row,
    make_rows,
)
from trainer.data.assembly import (
    Instances,
    Taken,
    concatenate,
    cut_batch,
    gather,
    join_batches,
    make_batch,
)
from trainer.data.batch import Batch
from trainer.loader import evaluation_batches

CLASSES = token_classes(VOCABULARY, range(5))


def rows_with_words(numbers: range) -> InstanceRows:
    rows = make_rows(numbers, None)
    return replace(rows, word_starts=np.random.default_rng(1).random(rows.input_ids.size) < 0.5)


def batch_of(instances: Instances, rules: MaskingConfig) -> Batch:
    return make_batch(instances, seed=SEED, purpose="mask", epoch=2, rules=rules, classes=CLASSES)


@pytest.mark.parametrize("unit", ["whole_word", "ngram", "span"])
def test_masks_follow_the_word_starts_of_moved_rows(unit: str) -> None:
    rules = MaskingConfig(unit=unit)  # type: ignore[arg-type]
    rows = rows_with_words(range(20))
    expected = mask_tokens(
        rows.input_ids,
        rows.offsets,
        np.arange(20, dtype=np.uint64),
        seed=SEED,
        purpose="mask",
        epoch=2,
        repetition=0,
        rules=rules,
        classes=CLASSES,
        word_starts=rows.word_starts,
    )
    whole = Instances.of(rows, 0)
    order = np.random.default_rng(2).permutation(20)
    window = concatenate([whole.span(0, 7), whole.span(7, 20)])
    taken = [
        Taken(instances=window, rows=order[:12], counts=np.array([12])),
        Taken(instances=window, rows=order[12:], counts=np.array([8])),
    ]
    batch = batch_of(gather(taken)[0], rules)
    for place, row in enumerate(order):
        start, end = rows.offsets[row : row + 2]
        here = slice(*batch.cu_seqlens[place : place + 2])
        assert batch.input_ids[here].tolist() == expected.input_ids[start:end].tolist()
    without = batch_of(Instances.of(replace(rows, word_starts=None), 0), rules)
    assert without.masked_positions.tolist() != expected.positions.tolist()


def test_rows_taken_for_several_steps_stand_step_by_step_in_the_order_of_the_pieces() -> None:
    windows = [Instances.of(make_rows(range(first, first + 9), None), first) for first in (0, 20)]
    taken = [
        Taken(instances=windows[0], rows=np.array([3, 1, 8]), counts=np.array([2, 0, 1])),
        Taken(instances=windows[1], rows=np.array([5, 4]), counts=np.array([1, 1, 0])),
        Taken(instances=windows[0], rows=np.array([2]), counts=np.array([1, 0, 0])),
    ]
    found, ends = gather(taken)
    assert ends.tolist() == [4, 5, 6]
    assert found.flat["instance_number"].tolist() == [3, 1, 25, 2, 24, 8]
    ids, offsets = found.ragged["input_ids"]
    for place, number in enumerate([3, 1, 25, 2, 24, 8]):
        assert tuple(ids[slice(*offsets[place : place + 2])]) == make_row(number).input_ids


def plain(batch: Batch) -> list[object]:
    assert batch.pair_labels is not None
    return [
        (batch.input_ids[start:end].tolist(), batch.token_type_ids[start:end].tolist(), label)
        for start, end, label in zip(
            batch.cu_seqlens, batch.cu_seqlens[1:], batch.pair_labels, strict=False
        )
    ]


@pytest.mark.parametrize("size", [1, 20, 37, 64, 10_000])
def test_micro_batches_by_tokens_join_to_what_was_cut(size: int) -> None:
    batch = batch_of(Instances.of(make_rows(range(30), None), 0), MaskingConfig())
    parts = list(cut_batch(batch, 2, 30, size, "tokens"))
    # One of more tokens than the limit has a single sequence.
    assert all(part.input_ids.size <= size or part.cu_seqlens.size == 2 for part in parts)
    sizes = [part.input_ids.size for part in parts]
    firsts = [int(part.cu_seqlens[1]) for part in parts]
    assert all(done + after > size for done, after in zip(sizes, firsts[1:], strict=False))
    joined = join_batches(parts)
    assert plain(joined) == plain(batch)[2:]
    begin = batch.cu_seqlens[2]
    expected = batch.masked_positions[batch.masked_positions >= begin] - begin
    assert joined.masked_positions.tolist() == expected.tolist()
    assert joined.masked_lm_ids.tolist() == batch.masked_lm_ids[-expected.size :].tolist()


def test_rows_without_pairs_make_a_batch_without_labels_of_one_segment() -> None:
    rows = make_rows(range(6), None)
    whole = np.diff(rows.offsets).astype(np.uint16)
    rows = replace(rows, pair_labels=None, first_segment_length=whole)
    batch = batch_of(Instances.of(rows, 0), MaskingConfig())
    assert batch.pair_labels is None
    assert not batch.token_type_ids.any()


def test_word_starts_come_back_from_committed_shards(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows = rows_with_words(range(30))
    split = [("train", rows_with_words(range(9))), ("held_out", rows)]
    instances = commit_instances(tmp_path, VOCABULARY, split, rows_per_batch=8)
    (shard,) = instances.shards("held_out")
    found = [instances.read_rows(shard, number) for number in range(len(shard.batch_rows))]
    assert rows.word_starts is not None
    flags = np.concatenate([one.word_starts for one in found if one.word_starts is not None])
    assert np.array_equal(flags, rows.word_starts)
    rules = MaskingConfig(unit="whole_word")
    batches = evaluation_batches(
        instances, seed=SEED, rules=rules, rank=0, world_size=1, batch_size=64
    )
    got = np.concatenate([batch.input_ids for _, batch in batches])
    expected = mask_tokens(
        rows.input_ids,
        rows.offsets,
        np.arange(9, 39, dtype=np.uint64),
        seed=SEED,
        purpose="evaluation_mask",
        epoch=0,
        repetition=0,
        rules=rules,
        classes=CLASSES,
        word_starts=rows.word_starts,
    )
    assert np.array_equal(got, expected.input_ids)
