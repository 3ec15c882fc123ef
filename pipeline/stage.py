"""What every stage does around its units: find finished work, measure, commit, report."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from pipeline.commit import RUN_REPORT, Generation, objects_of
from pipeline.contract import canonical_json
from pipeline.errors import StorageError
from pipeline.resources import PeakMemory
from pipeline.storage import storage_retries

# How much of a killed attempt's time may be missing from the run report.
_REPORT_SECONDS = 5.0
_REPORTED: dict[str, type | tuple[type, ...]] = {
    "attempts": int,
    "cpus": int,
    "host": str,
    "peak_rss_bytes": int,
    "seconds": (float, int),
    "started_unix_seconds": (float, int),
}


def read_run_report(generation: Generation) -> dict[str, Any] | None:
    """Return what a stage's run_report.json says; None if it is missing or damaged.

    It tells of time, memory and host, and no result depends on it.
    """
    name = generation.name(RUN_REPORT)
    if generation.storage.size(name) is None:
        return None
    try:
        report = json.loads(generation.storage.read(name))
    except ValueError:
        return None
    whole = isinstance(report, dict) and all(
        isinstance(report.get(key), kind) for key, kind in _REPORTED.items()
    )
    return report if whole else None


class Stage:
    """One run of one stage: `manifest` is that of a finished generation, else None.

    With `repairs` a generation that lost objects since is not finished: its units are done again.
    run_report.json adds up the attempts: seconds and requests to the store that were repeated of
    all of them, the highest memory of any.
    """

    def __init__(self, generation: Generation, *, repairs: bool = False) -> None:
        self.generation = generation
        self.manifest = generation.manifest()
        if repairs and self.manifest is not None and (lost := self._lost(self.manifest)):
            self._say(f"{len(lost)} of its objects are gone, such as {lost[0]}; making them again")
            self.manifest = None
        self._units: dict[str, dict[str, int]] = {}
        self._storage_retries = -storage_retries()  # of this process, before this stage
        self._memory = PeakMemory()
        self._started = time.time()
        self._before: Mapping[str, Any] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_report, name="run-report", daemon=True)

    def __enter__(self) -> Stage:
        self._memory.__enter__()
        if self.manifest is not None:
            self.generation.point()
            self._say("done already")
            return self
        self._before = read_run_report(self.generation) or {}
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_reporting()
        self._memory.__exit__(kind, error, trace)

    def _lost(self, manifest: Mapping[str, Any]) -> list[str]:
        generation = self.generation
        # One listing: asking for each would take minutes in an object store.
        there = {name for name, _ in generation.storage.list(f"{generation.prefix}/")}
        names = (entry.name for entry in objects_of(manifest))
        return [name for name in names if generation.name(name) not in there]

    def _stop_reporting(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _keep_report(self) -> None:
        name = self.generation.name(RUN_REPORT)
        while not self._stop.wait(_REPORT_SECONDS):
            # The work itself will tell of a store that does not answer.
            with suppress(StorageError):
                self.generation.storage.replace(name, canonical_json(self._report()))

    def _report(self) -> dict[str, Any]:
        seconds = time.time() - self._started
        before = self._before
        return {
            "attempts": before.get("attempts", 0) + 1,
            "cpus": os.cpu_count(),
            "host": socket.gethostname(),
            "peak_rss_bytes": max(self._memory.peak_bytes, before.get("peak_rss_bytes", 0)),
            "seconds": round(seconds + before.get("seconds", 0.0), 3),
            "started_unix_seconds": round(before.get("started_unix_seconds", self._started), 3),
            "storage_retries": self._storage_retries
            + storage_retries()
            + before.get("storage_retries", 0),
            "units": self._units,
        }

    def count_unit(self, marker: str, *, done_before: bool, storage_retries: int = 0) -> None:
        """Count a unit of a pass for run_report.json, which so tells what a resume had to do.

        `storage_retries` are the requests that a worker had to repeat for it.
        """
        self._storage_retries += storage_retries
        counts = self._units.setdefault(marker.split("/")[0], {"done_before": 0, "done_now": 0})
        counts["done_before" if done_before else "done_now"] += 1

    def commit(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Write report and manifest and point the stage at them; returns the manifest."""
        self._stop_reporting()
        body = self.generation.commit(manifest, self._report())
        self._say(f"{time.time() - self._started:.1f} s")
        return body

    def _say(self, what: str) -> None:
        where = f"{self.generation.root}/{self.generation.prefix}".removeprefix(f"{Path.cwd()}/")
        Console(highlight=False, soft_wrap=True).print(
            f"{self.generation.stage}: {what} -> {where}", markup=False
        )
