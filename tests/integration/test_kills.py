"""`kill -9` of the driver or of a worker in the middle of each stage changes no byte.

What was done before a kill is not done again: its markers are sealed, rewritten as the same JSON
in other bytes, and whoever completed such a unit once more would be refused for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.integration.corpus import REPEATED_FILES
from tests.integration.product import Command, module, started
from tests.integration.run_folder import (
    contents,
    current,
    differences,
    markers,
    require_whole,
    units,
)

pytestmark = pytest.mark.ray


class Seals:
    """Markers that nobody may write again, and their own bytes."""

    def __init__(self) -> None:
        self._bytes: dict[Path, bytes] = {}

    def add(self, paths: list[Path]) -> None:
        for path in paths:
            self._bytes[path] = path.read_bytes()
            path.write_text(json.dumps(json.loads(self._bytes[path])))

    def lift(self) -> None:
        for path, data in self._bytes.items():
            path.write_bytes(data)


def hold(root: Path, marker: Path) -> Path:
    """Put a pipe in the place of a unit's marker, so that the stage cannot end while it is there.

    Whoever looks whether the unit is done waits in opening it. Returns its path.
    """
    gate = root / marker
    gate.parent.mkdir(parents=True)
    os.mkfifo(gate)
    return gate


@contextmanager
def someone_at(gate: Path, job: Command) -> Iterator[None]:
    """Wait for a worker that `gate` holds: it cannot leave in this block, nor another one come."""
    ends: list[int] = []

    def look() -> bool:
        with suppress(OSError):  # nobody reads there
            ends.append(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        return bool(ends)

    job.until(look, f"a worker began {gate}")
    gate.unlink()
    try:
        yield
    finally:
        os.close(ends[0])


@pytest.mark.slow
def test_killed_drivers_leave_what_the_same_command_goes_on_from(
    undisturbed: Path, config: str, tmp_path: Path
) -> None:
    root = tmp_path
    command = module(
        "pipeline", "run", "--config", config, "--root", str(root), "--cluster.workers", "2"
    )
    splits = units(undisturbed, "documents")["split"]["done_now"]
    partitions = units(undisturbed, "instances")["build"]["done_now"]
    # Nine tenths and more: only the repeated files, seconds of work each, are in flight.
    most = splits - REPEATED_FILES
    assert splits > most >= 0.9 * splits
    seals = Seals()
    done = {}
    with ExitStack() as running:
        for stage, unit, count in (
            ("documents", "split/*", most),
            ("vocabulary", "count/*", 1),
            ("instances", "build/*", 1),
        ):
            last = markers(undisturbed, stage, unit)[-1]
            gate = hold(root, last.relative_to(undisturbed))
            job = running.enter_context(started(*command))
            job.until(
                partial(lambda s, u, c: len(markers(root, s, u)) >= c, stage, unit, count),
                f"{count} of {stage} {unit} were done",
            )
            job.kill()
            gate.unlink()
            # The next one starts at once: the killed one's workers may still be writing.
            done[stage] = len(markers(root, stage, unit))
            assert not (root / stage / "current.json").exists(), f"{stage} was done before the kill"
            seals.add(markers(root, stage))
        running.enter_context(started(*command)).wait().require_success()
    seals.lift()
    assert differences(contents(undisturbed), contents(root)) == []
    read = units(root, "documents")["split"]
    # One of those in flight may still have ended before the kill.
    assert read["done_before"] >= done["documents"] >= most
    assert read["done_now"] <= splits - done["documents"]
    assert units(root, "vocabulary")["normalization"] == {"done_before": 1, "done_now": 0}
    built = units(root, "instances")["build"]
    assert built["done_before"] >= done["instances"]
    assert built["done_now"] <= partitions - done["instances"]
    require_whole(root)


def test_killed_workers_are_replaced_and_the_command_ends_well(
    undisturbed: Path, config: str, tmp_path: Path
) -> None:
    root = tmp_path
    command = module(
        "pipeline", "run", "--config", config, "--root", str(root), "--cluster.workers", "2"
    )
    gates = {}
    for stage, unit in (
        ("documents", "split/*"),
        ("vocabulary", "count/*"),
        ("instances", "build/*"),
    ):
        found = markers(undisturbed, stage, unit)
        gates[stage] = hold(root, found[len(found) // 2].relative_to(undisturbed))
    with started(*command) as job:
        for stage, gate in gates.items():
            with someone_at(gate, job):
                assert markers(root, stage), f"none of {stage} was done before the kill"
                job.kill_workers("ray::Map")
            assert not (root / stage / "current.json").exists(), f"{stage} was done before the kill"
        job.wait().require_success()
    assert differences(contents(undisturbed), contents(root)) == []
    assert current(root, "instances").name == current(undisturbed, "instances").name
    require_whole(root)
