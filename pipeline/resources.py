"""Peak resident memory of a command and everything it started."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Literal

import psutil

# Walking the processes of a machine takes tens of milliseconds.
_INTERVAL_SECONDS = 2.0


class PeakMemory:
    """Samples the resident bytes of this process and its descendants while the block runs.

    Pages that several processes share count once.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
        self.peak_bytes = sum(_sizes("pss"))  # short work may end before the thread looks
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        highest = 0
        while True:
            resident = sum(_sizes("rss"))
            # Shared pages counted once (PSS) take milliseconds a process to add up, so only
            # where the cheap sum, an upper bound, stands higher than before.
            if resident > highest:
                highest = resident
                self.peak_bytes = max(self.peak_bytes, sum(_sizes("pss")))
            if self._stop.wait(_INTERVAL_SECONDS):
                return


def _sizes(kind: Literal["rss", "pss"]) -> Iterator[int]:
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            memory = process.memory_info() if kind == "rss" else process.memory_full_info()
            yield getattr(memory, kind)
        except psutil.Error:  # it ended between listing and reading
            continue
