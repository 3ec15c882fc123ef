"""The loader beside a torch DataLoader, one core: `python -m tests.benchmarks.loader`.

An epoch of 64 million tokens in 16 shards, shuffled, in batches of 256 sequences with dynamic
masks: beside what one writes by hand (a Dataset over the memory-mapped rows, a shuffling DataLoader
and transformers' collator, whose batches are padded), and beside the shards read and masked in
their order, without a shuffle.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, Dataset

from pipeline.config import MaskingConfig
from pipeline.instance_rows import InstanceRows
from pipeline.instance_set import InstanceSet
from pipeline.shards import record_batch
from tests.benchmarks.harness import Case, run
from tests.benchmarks.masking import VOCABULARY, collator, sequences
from tests.trainer.instance_fixture import commit_instances
from trainer.data.assembly import Instances, cut_batch, make_batch
from trainer.data.epoch_order import Unit
from trainer.data.phases import Phase, Source
from trainer.loader import Loader

SHARDS = 16
TOKENS = 1 << 26
PEER_TOKENS = 1 << 21
BATCH_SIZE = 256


class ArrowRows(Dataset[dict[str, Any]]):
    """Rows of an uncompressed Arrow file, memory-mapped."""

    def __init__(self, path: Path) -> None:
        with pa.memory_map(str(path)) as source:
            self._column = pa.ipc.open_file(source).read_all().column("input_ids")

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = self._column[index].values.to_numpy()
        return {"input_ids": ids.tolist(), "special_tokens_mask": (ids < 5).astype(int).tolist()}


def rows_of(tokens: int, total: int) -> InstanceRows:
    """Full sequences, `total` tokens in all."""
    ids = sequences(tokens, total)
    rows = ids.shape[0]
    return InstanceRows(
        input_ids=ids.ravel(),
        offsets=np.arange(rows + 1, dtype=np.int64) * tokens,
        first_segment_length=np.full(rows, tokens // 2 + 1, dtype=np.uint16),
        pair_labels=np.zeros(rows, dtype=np.int8),
    )


def ours(
    instances: InstanceSet, lanes: int, unit: Unit = "sequences", threads: int = 2
) -> Callable[[], object]:
    (tokens,) = {shard.tokens // shard.rows for shard in instances.shards("train")}
    size = BATCH_SIZE if unit == "sequences" else BATCH_SIZE * tokens
    steps = TOKENS // tokens // BATCH_SIZE

    def epoch(steps: int = steps) -> int:
        seen = 0
        phase = Phase(
            sources=(Source(instances=instances),),
            batch_size=lambda step: size,
            micro_batch_size=size,
            unit=unit,
            steps=steps,
        )
        with Loader(
            [phase],
            seed=0,
            rules=MaskingConfig(),
            lanes=lanes,
            window_batches=8,
            rank=0,
            world_size=1,
            read_threads=threads,
        ) as loader:
            for step in loader:
                seen += sum(batch.input_ids.size for batch in step.micro_batches)
        return seen

    epoch(1)  # compiles
    return epoch


def in_order(instances: InstanceSet) -> Callable[[], object]:
    """Each record batch, masked and cut by the loader's own functions."""

    def epoch() -> int:
        seen = 0
        for shard in instances.shards("train"):
            for number in range(len(shard.batch_rows)):
                batch = make_batch(
                    Instances.of(instances.read_rows(shard, number), 0),
                    seed=0,
                    purpose="mask",
                    epoch=0,
                    rules=MaskingConfig(),
                    classes=instances.token_classes,
                )
                for part in cut_batch(batch, 0, shard.batch_rows[number], BATCH_SIZE, "sequences"):
                    seen += part.input_ids.size
        return seen

    return epoch


def theirs(path: Path) -> Callable[[], object]:
    call = collator(whole_word=False)
    rows = ArrowRows(path)

    def epoch() -> int:
        batches = DataLoader(rows, batch_size=BATCH_SIZE, shuffle=True, collate_fn=call)
        return sum(batch["input_ids"].numel() for batch in batches)

    return epoch


def write(root: Path | str, tokens: int) -> InstanceSet:
    rows = rows_of(tokens, TOKENS // SHARDS)
    return commit_instances(root, VOCABULARY, [("train", rows)] * SHARDS, rows_per_batch=1024)


def cases(folder: Path, tokens: int) -> list[Case]:
    instances = write(folder / str(tokens), tokens)
    plain = folder / f"{tokens}.arrow"
    rows = rows_of(tokens, PEER_TOKENS)
    with pa.ipc.new_file(str(plain), instances.schema) as writer:
        writer.write_batch(record_batch(rows, instances.schema, 0, rows.rows))
    by_hand = "torch DataLoader, transformers collator"
    by_unit = [
        Case(
            case=f"{tokens} tokens a row, {lanes} lanes, by {unit}",
            unit="tokens/s",
            amount=TOKENS,
            ours=ours(instances, lanes, unit),
            peer=by_hand,
            theirs=theirs(plain),
            peer_amount=PEER_TOKENS,
        )
        for lanes, unit in ((64, "sequences"), (256, "sequences"), (64, "tokens"))
    ]
    return [
        *by_unit,
        Case(
            case=f"{tokens} tokens a row, 64 lanes",
            unit="tokens/s",
            amount=TOKENS,
            ours=ours(instances, 64),
            peer="the shards in their order, masked",
            theirs=in_order(instances),
        ),
    ]


def on_one_core() -> None:
    """Keep this process, with all of its threads, on one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)


if __name__ == "__main__":
    on_one_core()
    with tempfile.TemporaryDirectory() as name:
        run("loader", [case for tokens in (128, 512) for case in cases(Path(name), tokens)])
