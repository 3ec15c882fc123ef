"""What every stage does around its units: find finished work, measure, commit, report."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from pipeline.commit import Generation
from pipeline.resources import PeakMemory


class Stage:
    """One run of one stage: `manifest` is that of a finished generation, else None."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.manifest = generation.manifest()
        self._units: dict[str, dict[str, int]] = {}
        self._memory = PeakMemory()
        self._started = time.time()

    def __enter__(self) -> Stage:
        self._memory.__enter__()
        if self.manifest is not None:
            self.generation.point()
            self._say("done already")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._memory.__exit__(kind, error, trace)

    def count_unit(self, marker: str, *, done_before: bool) -> None:
        """Count a unit of a pass for run_report.json, which so tells what a resume had to do."""
        counts = self._units.setdefault(marker.split("/")[0], {"done_before": 0, "done_now": 0})
        counts["done_before" if done_before else "done_now"] += 1

    def commit(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Write report and manifest and point the stage at them; returns the manifest."""
        seconds = time.time() - self._started
        report = {
            "cpus": os.cpu_count(),
            "host": socket.gethostname(),
            "peak_rss_bytes": self._memory.peak_bytes,
            "seconds": round(seconds, 3),
            "started_unix_seconds": round(self._started, 3),
            "units": self._units,
        }
        body = self.generation.commit(manifest, report)
        self._say(f"{seconds:.1f} s")
        return body

    def _say(self, what: str) -> None:
        where = f"{self.generation.root}/{self.generation.prefix}".removeprefix(f"{Path.cwd()}/")
        Console(highlight=False, soft_wrap=True).print(
            f"{self.generation.stage}: {what} -> {where}", markup=False
        )
