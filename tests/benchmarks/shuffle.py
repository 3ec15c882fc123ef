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

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from trainer.epoch_order import EpochOrder, RecordBatches, Unit

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
    table = RecordBatches(
        shard=record_batches // BATCHES,
        number=record_batches % BATCHES,
        rows=np.full_like(record_batches, ROWS),
        tokens=by_batch.sum(axis=1),
        first_instance=record_batches * ROWS,
    )
    order = EpochOrder.of(
        table,
        seed=0,
        epoch=epoch,
        lanes=lanes,
        window_batches=window_batches,
        unit=unit,
        row_tokens=by_batch.__getitem__,
    )
    budget = BATCH_SIZE * order.total // TOTAL
    steps, lane_of = np.empty(TOTAL, dtype=np.int64), np.empty(TOTAL, dtype=np.int64)
    for number in range(lanes):
        lane = order.lane(number)
        rows = []
        for window in range(lane.windows):
            inside = np.concatenate(
                [
                    lane.batch[at] * ROWS + np.arange(lane.start[at], lane.end[at])
                    for at in lane.segments(window)
                ]
            )
            rows.append(inside[order.rows_of_window(number, window, inside.size)])
        # A lane's n-th unit is the turn n * lanes + spread of the epoch.
        in_order = np.concatenate(rows)
        units = np.ones_like(in_order) if unit == "sequences" else row_tokens[in_order]
        turn = (np.cumsum(units) - units) * lanes + order.spread[number]
        steps[in_order] = turn // budget
        lane_of[in_order] = number
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


def balance() -> list[dict[str, str | float]]:
    """Tokens of the fullest rank over the mean, mean over the steps of an epoch; 64 lanes."""
    draw = np.random.default_rng(0)
    # One row in three is shorter than the rest, by chance, as ends of documents are.
    tokens = np.where(draw.random(TOTAL) < 1 / 3, draw.integers(8, 129, TOTAL), 128)
    table = Table(title="tokens of the fullest rank over those of the mean rank")
    for column in "ranks", "by sequences", "by tokens":
        table.add_column(column, justify="right")
    results: list[dict[str, str | float]] = []
    for ranks in (2, 8, 64):
        found = {}
        for unit in UNITS:
            steps, lane = lanes_and_windows(64, 8, 0, unit, tokens)
            cells = np.bincount(steps * ranks + lane * ranks // 64, weights=tokens)
            cells = cells[: cells.size // ranks * ranks].reshape(-1, ranks)[:-1]
            found[unit] = float((cells.max(axis=1) / cells.mean(axis=1)).mean())
        table.add_row(str(ranks), *(f"{found[unit]:.3f}" for unit in UNITS))
        results.append(
            {
                "case": f"fullest of {ranks} ranks over the mean, by tokens",
                "value": found["tokens"],
                "unit": "ratio",
                "peer": "by sequences",
                "peer_value": found["sequences"],
                "ratio": found["tokens"] / found["sequences"],
            }
        )
    Console().print(table)
    return results


def main() -> None:
    full = figures(full_shuffle(0), full_shuffle(1))
    table = Table(title="shuffle, as a ratio to a full shuffle")
    for column in "lanes", "window_batches", *full:
        table.add_column(column, justify="right")
    results: list[dict[str, str | float]] = []
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
    results += balance()
    folder = Path("runs/bench")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shuffle.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
