"""Runs each case beside its peer, interleaved, and reports the medians and their ratio."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

_FIGURES = {"value", "peer_value", "ratio"}
_DIRECTORY = Path("runs/bench")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One measurement: `amount` of `unit`-seconds of work done by `ours` and by `theirs`."""

    case: str
    unit: str
    amount: float
    ours: Callable[[], object]
    peer: str
    theirs: Callable[[], object]
    rounds: int = 3
    peer_amount: float = 0.0
    """What `theirs` does, where the peer is too slow to do it all; 0: `amount`."""
    clock: Callable[[], float] = time.perf_counter
    """time.process_time where CPU seconds are to be compared."""


def _measure(case: Case) -> dict[str, str | float]:
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(case.rounds):
        for work, taken in zip((case.ours, case.theirs), seconds, strict=True):
            start = case.clock()
            work()
            taken.append(case.clock() - start)
    value, peer_value = (
        amount / statistics.median(taken)
        for amount, taken in zip(
            (case.amount, case.peer_amount or case.amount), seconds, strict=True
        )
    )
    return {
        "case": case.case,
        "value": value,
        "unit": case.unit,
        "peer": case.peer,
        "peer_value": peer_value,
        "ratio": value / peer_value,
    }


def run(name: str, cases: list[Case]) -> None:
    """Measure `cases`, print them as a table and write them to runs/bench/NAME.json.

    A value is amount / median seconds of the rounds; ours and the peer's take turns, so that both
    meet the same load of the machine.
    """
    results = [_measure(case) for case in cases]
    table = Table(title=name)
    for column in "case", "value", "unit", "peer", "peer_value", "ratio":
        table.add_column(column, justify="right" if column in _FIGURES else "left")
    for result in results:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else v for v in result.values()))
    Console().print(table)
    save(name, results)


def save(name: str, results: object) -> None:
    """Write what was measured, as JSON, to runs/bench/NAME.json."""
    _DIRECTORY.mkdir(parents=True, exist_ok=True)
    (_DIRECTORY / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n")
