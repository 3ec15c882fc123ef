"""The loader beside a torch DataLoader, one core: `python -m tests.benchmarks.loader`.

Both give one epoch of shuffled batches of 256 sequences with dynamic masks, from an Arrow file
on disk. The peer is what one writes by hand: a Dataset over the memory-mapped rows, a shuffling
DataLoader and transformers' collator, whose batches are padded.
"""

from __future__ import annotations

import itertools
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
from tests.benchmarks.harness import Case, run
from tests.benchmarks.masking import VOCABULARY, collator, sequences
from tests.trainer.instance_fixture import commit_instances
from trainer.loader import Loader

TOKENS = 1 << 22
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


def rows_of(tokens: int) -> InstanceRows:
    """TOKENS tokens in full sequences."""
    one = sequences(tokens)
    ids = np.tile(one, (TOKENS // one.size, 1))
    rows = ids.shape[0]
    return InstanceRows(
        input_ids=ids.ravel(),
        offsets=np.arange(rows + 1, dtype=np.int64) * tokens,
        first_segment_length=np.full(rows, tokens // 2 + 1, dtype=np.uint16),
        pair_labels=np.zeros(rows, dtype=np.int8),
    )


def ours(instances: InstanceSet, rules: MaskingConfig, lanes: int) -> Callable[[], object]:
    def epoch() -> int:
        tokens = 0
        with Loader(
            instances,
            seed=0,
            rules=rules,
            lanes=lanes,
            window_batches=8,
            batch_size=BATCH_SIZE,
            micro_batch_size=BATCH_SIZE,
            rank=0,
            world_size=1,
        ) as loader:
            for step in itertools.islice(loader, loader.steps_per_epoch):
                tokens += sum(batch.input_ids.size for batch in step.micro_batches)
        assert tokens == TOKENS
        return tokens

    epoch()  # compiles
    return epoch


def theirs(path: Path) -> Callable[[], object]:
    call = collator(whole_word=False)
    rows = ArrowRows(path)

    def epoch() -> int:
        batches = DataLoader(rows, batch_size=BATCH_SIZE, shuffle=True, collate_fn=call)
        return sum(batch["input_ids"].numel() for batch in batches)

    return epoch


def cases(folder: Path) -> list[Case]:
    found = []
    for tokens in (128, 512):
        rows = rows_of(tokens)
        instances = commit_instances(
            folder / str(tokens), VOCABULARY, [("train", rows)], rows_per_batch=1024
        )
        plain = folder / f"{tokens}.arrow"
        batch = rows.record_batch(instances.schema, 0, rows.rows)
        with pa.ipc.new_file(str(plain), instances.schema) as writer:
            writer.write_batch(batch)
        found += [
            Case(
                case=f"{tokens} tokens a row, {lanes} lanes",
                unit="tokens/s",
                amount=TOKENS,
                ours=ours(instances, MaskingConfig(), lanes),
                peer="torch DataLoader, transformers collator",
                theirs=theirs(plain),
            )
            for lanes in (64, 256)
        ]
    return found


if __name__ == "__main__":
    # One core for all threads of the process, the loader's own included.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        run("loader", cases(Path(name)))
