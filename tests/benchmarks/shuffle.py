"""How well an epoch is shuffled, beside a full shuffle: `python -m tests.benchmarks.shuffle`.

Two million rows in 256 shards of 64 record batches of 128 rows, batches of 256 sequences. Each
figure is a ratio to that of a full shuffle, 1.0 being as good:

- `same shard`: pairs of rows of one shard that meet in a batch.
- `met again`: pairs that met in a batch of one epoch and meet again in one of the next.
- `neighbours`: the distance in steps of two rows that lie side by side in a shard.
- `runs`: the standard deviation of a batch's share of a source, were the shards sorted by source
  (eight of them, 32 shards each), which those of the pipeline are not: a partition is a uniform
  sample of the corpus in random order.

And how evenly the tokens of a batch lie on the ranks, by sequences and by tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from tests.benchmarks.harness import save
from trainer.data.assembly import Instances
from trainer.data.epoch_order import EpochOrder, RecordBatches, Unit
from trainer.data.lanes import RankLanes

SHARDS, BATCHES, ROWS, SOURCES = 256, 64, 128, 8
TOTAL = SHARDS * BATCHES * ROWS
BATCH_SIZE = 256
ONES = np.ones(TOTAL, dtype=np.int64)
UNITS: tuple[Unit, ...] = ("sequences", "tokens")

Steps = NDArray[np.int64]
"""[TOTAL], the step in which each row, in the order of the shards, is seen."""


def lanes_and_windows(
    lanes: int,
    window_batches: int,
    epoch: int,
    unit: Unit = "sequences",
    row_tokens: NDArray[np.int64] = ONES,
) -> tuple[Steps, NDArray[np.int64]]:
    """Return the step and the lane of each row."""
    record_batches = np.arange(SHARDS * BATCHES)
    by_batch = row_tokens.reshape(-1, ROWS)
    order = EpochOrder.of(
        RecordBatches(
            shard=record_batches // BATCHES,
            number=record_batches % BATCHES,
            rows=np.full_like(record_batches, ROWS),
            tokens=by_batch.sum(axis=1),
            first_instance=record_batches * ROWS,
        ),
        seed=0,
        epoch=epoch,
        lanes=lanes,
        window_batches=window_batches,
        unit=unit,
        row_tokens=by_batch.__getitem__,
    )
    # A token's id is the number of its row, so that what is taken says which rows they are.
    ids = np.repeat(np.arange(TOTAL, dtype=np.uint32), row_tokens)
    starts = np.concatenate([[0], np.cumsum(row_tokens)])

    def read(batch: int) -> Instances:
        offsets = starts[batch * ROWS : (batch + 1) * ROWS + 1]
        column = ids[offsets[0] : offsets[-1]], offsets - offsets[0]
        numbers = np.arange(batch * ROWS, (batch + 1) * ROWS, dtype=np.uint64)
        return Instances(ragged={"input_ids": column}, flat={"instance_number": numbers})

    budget = BATCH_SIZE * order.total // TOTAL
    cursors = [*range(budget, order.total, budget), order.total]
    steps, lane_of = np.empty(TOTAL, dtype=np.int64), np.empty(TOTAL, dtype=np.int64)
    for number in range(lanes):
        for taken in RankLanes(order, range(number, number + 1), 0, read).take(cursors):
            rows = taken.instances.flat["instance_number"][taken.rows].astype(np.int64)
            steps[rows] = np.repeat(np.arange(len(cursors)), taken.counts)
            lane_of[rows] = number
    return steps, lane_of


def full_shuffle(epoch: int) -> Steps:
    return np.random.default_rng(epoch).permutation(TOTAL) // BATCH_SIZE


def pairs_together(*labels: NDArray[np.int64]) -> float:
    """Pairs of rows that have all labels in common."""
    key = labels[0].astype(np.int64)
    for label in labels[1:]:
        key = key * (int(label.max()) + 1) + label
    counts = np.unique(key, return_counts=True)[1]
    return float((counts * (counts - 1) // 2).sum())


def figures(first: Steps, second: Steps) -> dict[str, float]:
    shard = np.arange(TOTAL) // (BATCHES * ROWS)
    source = shard * SOURCES // SHARDS
    shares = np.bincount(first[source == 0], minlength=TOTAL // BATCH_SIZE) / BATCH_SIZE
    beside = np.flatnonzero(np.diff(shard) == 0)
    return {
        "same shard": pairs_together(first, shard),
        "met again": pairs_together(first, second),
        "neighbours": float(np.abs(first[beside + 1] - first[beside]).mean()),
        "runs": float(shares.std()),
    }


def fullest(steps: Steps, rank: NDArray[np.int64], tokens: NDArray[np.int64], ranks: int) -> float:
    """Tokens of the fullest rank over those of the mean rank, mean over the whole steps."""
    cells = np.bincount(steps * ranks + rank, weights=tokens)
    cells = cells[: cells.size // ranks * ranks].reshape(-1, ranks)[:-1]
    return float((cells.max(axis=1) / cells.mean(axis=1)).mean())


def balance() -> list[dict[str, str | float]]:
    """How tokens lie on the ranks of 64 lanes, beside rows that are dealt at random."""
    draw = np.random.default_rng(0)
    # One row in three is shorter than the rest, by chance, as ends of documents are.
    tokens = np.where(draw.random(TOTAL) < 1 / 3, draw.integers(8, 129, TOTAL), 128)
    table = Table(title="tokens of the fullest rank over those of the mean rank")
    for column in "ranks", "by sequences", "by tokens", "at random":
        table.add_column(column, justify="right")
    orders = {unit: lanes_and_windows(64, 8, 0, unit, tokens) for unit in UNITS}
    random_rows = draw.permutation(TOTAL)
    results: list[dict[str, str | float]] = []
    for ranks in (2, 8, 64):
        found = {
            unit: fullest(steps, lane * ranks // 64, tokens, ranks)
            for unit, (steps, lane) in orders.items()
        }
        places = random_rows % BATCH_SIZE * ranks // BATCH_SIZE
        peer = fullest(random_rows // BATCH_SIZE, places, tokens, ranks)
        table.add_row(str(ranks), *(f"{one:.3f}" for one in (*found.values(), peer)))
        results += [
            {
                "case": f"fullest of {ranks} ranks over the mean, batches by {unit}",
                "value": value,
                "unit": "ratio",
                "peer": "rows dealt at random",
                "peer_value": peer,
                "ratio": value / peer,
            }
            for unit, value in found.items()
        ]
    Console().print(table)
    return results


def main() -> None:
    results = balance()
    full = figures(full_shuffle(0), full_shuffle(1))
    table = Table(title="shuffle, as a ratio to a full shuffle")
    for column in "lanes", "window_batches", *full:
        table.add_column(column, justify="right")
    for lanes in (16, 64, 256):
        for window_batches in (1, 8, 32):
            found = figures(
                lanes_and_windows(lanes, window_batches, 0)[0],
                lanes_and_windows(lanes, window_batches, 1)[0],
            )
            ratios = {name: value / full[name] for name, value in found.items()}
            table.add_row(
                str(lanes), str(window_batches), *(f"{ratio:.2f}" for ratio in ratios.values())
            )
            results += [
                {
                    "case": f"{name}, {lanes} lanes, {window_batches} record batches a window",
                    "value": found[name],
                    "unit": "pairs, steps or share",
                    "peer": "full shuffle",
                    "peer_value": full[name],
                    "ratio": ratio,
                }
                for name, ratio in ratios.items()
            ]
    Console().print(table)
    save("shuffle", results)


if __name__ == "__main__":
    main()
