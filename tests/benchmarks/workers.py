"""Two workers of one thread beside one of two threads: `python -m tests.benchmarks.workers`.

The product's own command on a local Ray, the demo's corpus and model (deploy/runs/demo.toml), in
turns; the median tokens/s of the records of metrics.jsonl but the first, which has the loader's
start in it. The data stay in runs/bench/workers.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from pipeline.commit import current
from tests.benchmarks.harness import save
from trainer.journal import read_journal

CONFIG = "deploy/runs/demo.toml"
ROOT = "runs/bench/workers"
ROUNDS = 3
STEPS = 150


def command(module: str, name: str, **flags: str) -> None:
    """Run one of the product's commands to its end."""
    given = {"config": CONFIG, "root": ROOT, **flags}
    pairs = [part for key, value in given.items() for part in (f"--{key}", value)]
    subprocess.run([sys.executable, "-m", module, name, *pairs], check=True)


def tokens_per_second(workers: int, threads: int) -> float:
    """Train anew for STEPS steps."""
    shutil.rmtree(Path(ROOT, "training"), ignore_errors=True)
    flags = {
        "training.workers": str(workers),
        "training.threads_per_worker": str(threads),
        "training.total_steps": str(STEPS),
        "evaluation.every_steps": "0",
    }
    command("trainer", "pretrain", **flags)
    generation, _ = current(ROOT, "training", "python -m trainer pretrain")
    rates = [one["tokens_per_second"] for one in read_journal(generation) if one["kind"] == "train"]
    return statistics.median(rates[1:])


def main() -> None:
    command("pipeline", "run")
    rates: dict[tuple[int, int], list[float]] = {(2, 1): [], (1, 2): []}
    for _ in range(ROUNDS):
        for shape, measured in rates.items():
            measured.append(tokens_per_second(*shape))
    two, one = (statistics.median(measured) for measured in rates.values())
    result = {
        "case": "2 workers of 1 thread",
        "value": two,
        "unit": "tokens/s",
        "peer": "1 worker of 2 threads",
        "peer_value": one,
        "ratio": two / one,
    }
    print(
        f"2 workers x 1 thread: {two:,.0f} tokens/s; 1 worker x 2 threads: {one:,.0f} tokens/s; "
        f"ratio {two / one:.2f}"
    )
    save("workers", [result])


if __name__ == "__main__":
    main()
