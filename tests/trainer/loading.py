"""Loaders over small instance sets, and what a model sees of their batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.config import MaskingConfig
from pipeline.instance_set import InstanceSet
from tests.trainer.instance_fixture import NUMBER_TOKENS, SEED, make_row
from trainer.data.batch import Batch, check_batch
from trainer.data.epoch_order import Unit
from trainer.data.phases import Phase, Source
from trainer.data.plan import LoaderState
from trainer.loader import Loader, StepBatches, evaluation_batches

RULES = MaskingConfig()
TRAIN_ROWS = 97


def phase_of(
    *sets: InstanceSet,
    weights: Sequence[float] = (),
    batch_size: int = 8,
    micro_batch_size: int = 3,
    unit: Unit = "sequences",
    steps: int | None = None,
) -> Phase:
    """A phase of the sets, equally weighted unless told otherwise."""
    return Phase(
        sources=tuple(
            Source(instances=one, weight=weight)
            for one, weight in zip(sets, weights or [1.0] * len(sets), strict=True)
        ),
        batch_size=lambda step: batch_size,
        micro_batch_size=micro_batch_size,
        unit=unit,
        steps=steps,
    )


def open_loader(
    data: InstanceSet | Sequence[Phase],
    *,
    lanes: int = 4,
    window_batches: int = 2,
    rank: int = 0,
    world_size: int = 1,
    rules: MaskingConfig = RULES,
    seed: int = SEED,
    batch_size: int = 8,
    micro_batch_size: int = 3,
    unit: Unit = "sequences",
    **others: Any,
) -> Loader:
    """A loader over phases, or over one endless phase of an instance set."""
    if isinstance(data, InstanceSet):
        data = [phase_of(data, batch_size=batch_size, micro_batch_size=micro_batch_size, unit=unit)]
    return Loader(
        data,
        seed=seed,
        rules=rules,
        lanes=lanes,
        window_batches=window_batches,
        rank=rank,
        world_size=world_size,
        **others,
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
    """The loader's next steps; it is closed."""
    with loader:
        return list(itertools.islice(loader, steps))


def global_steps(
    data: InstanceSet | Sequence[Phase], steps: int, *, world_size: int, **layout: Any
) -> list[list[SequenceView]]:
    """The global batch of each step, the ranks' parts in order of rank."""
    ranks = [
        take(open_loader(data, rank=rank, world_size=world_size, **layout), steps)
        for rank in range(world_size)
    ]
    return [
        [one for step in parts for one in sequences(step.micro_batches)]
        for parts in zip(*ranks, strict=True)
    ]


def numbers_of(steps: Sequence[Sequence[SequenceView]]) -> list[int]:
    """The instance numbers of some steps, in their order."""
    return [number_of(one) for step in steps for one in step]


def plain(steps: Sequence[StepBatches]) -> list[tuple[object, int, LoaderState]]:
    """Steps as values that compare."""
    return [(tuple(sequences(step.micro_batches)), step.phase, step.state_after) for step in steps]


def evaluate(
    instance_set: InstanceSet,
    *,
    world_size: int,
    rank: int,
    batch_size: int = 5,
    max_instances: int | None = None,
) -> Iterator[Batch]:
    """A rank's held-out batches."""
    found = evaluation_batches(
        instance_set,
        seed=SEED,
        rules=RULES,
        rank=rank,
        world_size=world_size,
        batch_size=batch_size,
        max_instances=max_instances,
    )
    return (batch for _, batch in found)
