"""Held-out masked LM loss by training time: `python -m tests.benchmarks.pretraining [MINUTES]`.

The demo's corpus, vocabulary and model (deploy/runs/demo.toml), full sentences of 128 tokens, two
threads. First transformers' Trainer with its masked LM collator for MINUTES (10), then the
product's training loop for as long, then for half as long: does it end at the Trainer's loss in
half the time? How many updates fit, which the schedules need, is measured before. Prints the
curves and writes runs/bench/pretraining.json; the data stay in runs/bench/pretraining.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks._pretraining_sides import Curve, ours, theirs
from tests.benchmarks.harness import save
from trainer.config import TrainerConfig, load

_CONFIG = "deploy/runs/demo.toml"
_EVALUATIONS = 10
_WARM_STEPS, _TIMED_STEPS = 20, 60
Side = Callable[[TrainerConfig, int, int, Path], None]


def train(side: Side, config: TrainerConfig, steps: int, evaluations: int, folder: Path) -> Curve:
    """Train in a process of its own, so that no side has the other's threads or memory."""
    output = folder / "curve.json"
    process = multiprocessing.get_context("spawn").Process(
        target=side, args=(config, steps, evaluations, output)
    )
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{side.__name__}: exit code {process.exitcode}")
    curve: Curve = [(seconds, nats) for seconds, nats in json.loads(output.read_text())]
    return curve


def step_seconds(side: Side, config: TrainerConfig, folder: Path) -> float:
    """Return the seconds of an update once all is warm."""
    curve = train(side, config, _TIMED_STEPS + _WARM_STEPS, 4, folder)
    (first, _), (last, _) = curve[0], curve[-1]
    return (last - first) / _TIMED_STEPS


def main(minutes: float) -> None:
    """Train all three and compare."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = "runs/bench/pretraining"
        shutil.rmtree(Path(root, "training"), ignore_errors=True)  # else it would be done already
        flags = ["--root", root, "--instances.objective", "full_sentences"]
        command = [sys.executable, "-m", "pipeline", "run", "--config", _CONFIG, *flags]
        subprocess.run(command, check=True)
        config = load(_CONFIG)
        config = dataclasses.replace(
            config,
            root=root,
            instances=dataclasses.replace(config.instances, objective="full_sentences"),
        )
        seconds = {side: step_seconds(side, config, folder) for side in (theirs, ours)}
        curves: dict[str, Curve] = {}
        for title, side, share in (
            ("transformers' Trainer", theirs, 1.0),
            ("clozeline", ours, 1.0),
            ("clozeline, half the time", ours, 0.5),
        ):
            steps = int(60 * minutes * share / seconds[side])
            curves[f"{title}: {steps} updates"] = train(side, config, steps, _EVALUATIONS, folder)
    report(curves)


def report(curves: dict[str, Curve]) -> None:
    """Print the curves and write them as JSON."""
    console = Console()
    for title, curve in curves.items():
        table = Table("seconds", "held-out masked LM loss, nats", title=title)
        for seconds, nats in curve:
            table.add_row(f"{seconds:.0f}", f"{nats:.3f}")
        console.print(table)
    peer, same, half = curves.values()
    seconds, target = peer[-1]
    reached = next((when for when, nats in same if nats <= target), None)
    console.print(
        f"the Trainer ends at {target:.3f} nats after {seconds:.0f} s; clozeline at "
        f"{same[-1][1]:.3f} after {same[-1][0]:.0f} s, "
        + (f"past the Trainer's end after {reached:.0f} s, " if reached else "")
        + f"and at {half[-1][1]:.3f} when given {half[-1][0]:.0f} s"
    )
    save("pretraining", curves)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
