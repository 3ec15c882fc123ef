"""The first batch after a restart: `python -m tests.benchmarks.loader_resume [FOLDER]`.

Ten million instances of 128 tokens in 77 shards, 2.6 GB; a run that stands at 90 % of its second
epoch. From opening the set to the first batch, beside a run that begins: in a process that did it
before, and in a fresh one (cold), as a restart is, whose kernels numba has in its cache. The files
may be in the system's. FOLDER keeps the set for the next time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.config import MaskingConfig
from pipeline.instance_rows import InstanceRows
from pipeline.instance_set import InstanceSet
from tests.benchmarks.harness import Case, run
from tests.benchmarks.masking import VOCABULARY, sequences
from tests.trainer.instance_fixture import commit_instances
from trainer.data.phases import Phase, Source, set_name
from trainer.data.plan import LoaderState, SourceState
from trainer.loader import Loader

ROWS, ROWS_PER_SHARD, TOKENS = 10_000_000, 131_072, 128
BATCH_SIZE = 256


def write(folder: Path) -> None:
    """Commit ROWS instances; all shards hold the same rows under other numbers."""
    one = sequences(TOKENS).ravel()
    ids = np.resize(one, ROWS_PER_SHARD * TOKENS)

    def rows(count: int) -> InstanceRows:
        return InstanceRows(
            input_ids=ids[: count * TOKENS],
            offsets=np.arange(count + 1, dtype=np.int64) * TOKENS,
            first_segment_length=np.full(count, TOKENS // 2 + 1, dtype=np.uint16),
            pair_labels=np.zeros(count, dtype=np.int8),
        )

    sizes = [ROWS_PER_SHARD] * (ROWS // ROWS_PER_SHARD) + [ROWS % ROWS_PER_SHARD]
    shards = [("train", rows(size)) for size in sizes]
    commit_instances(folder, VOCABULARY, shards, rows_per_batch=1024)


def first_batch(folder: Path, epoch: int, cursor: int) -> Callable[[], object]:
    def begin() -> int:
        instances = InstanceSet.open(str(folder))
        source = SourceState(instances=set_name(instances), epoch=epoch, cursor=cursor)
        phase = Phase(
            sources=(Source(instances=instances),),
            batch_size=lambda step: BATCH_SIZE,
            micro_batch_size=BATCH_SIZE,
        )
        with Loader(
            [phase],
            seed=0,
            rules=MaskingConfig(),
            lanes=64,
            window_batches=8,
            rank=0,
            world_size=1,
            state=LoaderState(phase=0, step=0, sources=(source,)),
        ) as loader:
            return next(loader).micro_batches[0].input_ids.size

    return begin


def warm(folder: Path, epoch: int, cursor: int) -> Callable[[], object]:
    begin = first_batch(folder, epoch, cursor)
    begin()  # compiles, and fills numba's cache for the fresh processes
    return begin


@dataclass
class FreshProcesses:
    """A clock of the seconds that processes of their own say they took."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds

    def first_batch(self, folder: Path, epoch: int, cursor: int) -> Callable[[], object]:
        arguments = (str(folder), str(epoch), str(cursor))

        def begin() -> None:
            command = [sys.executable, "-m", "tests.benchmarks.loader_resume", *arguments]
            ended = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            self.seconds += float(ended.stdout)

        return begin


def main(folder: Path) -> None:
    root = folder / f"{TOKENS}-tokens"
    if not (root / "instances" / "current.json").exists():
        write(root)
    what = "first batch at 90 % of an epoch of 10 M instances"
    fresh = FreshProcesses()
    at = (1, ROWS * 9 // 10)
    run(
        "loader_resume",
        [
            Case(
                case=what,
                unit="first batches/s",
                amount=1.0,
                ours=warm(root, *at),
                peer="at its beginning",
                theirs=warm(root, 0, 0),
            ),
            Case(
                case=f"{what}, in a fresh process",
                unit="first batches/s",
                amount=1.0,
                ours=fresh.first_batch(root, *at),
                peer="at its beginning, in a fresh process",
                theirs=fresh.first_batch(root, 0, 0),
                clock=fresh,
            ),
        ],
    )


if __name__ == "__main__":
    if len(sys.argv) == 4:
        begin = first_batch(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
        start = time.perf_counter()
        begin()
        print(time.perf_counter() - start)
    elif len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))
