"""Peak resident memory of a command and everything it started."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil

_INTERVAL_SECONDS = 0.5


class PeakMemory:
    """Samples the resident bytes of this process and its descendants while the block runs."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
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
        while True:
            self.peak_bytes = max(self.peak_bytes, _resident_bytes())
            if self._stop.wait(_INTERVAL_SECONDS):
                return


def _resident_bytes() -> int:
    # A sum of resident sizes counts shared pages once a process: an upper bound.
    own = psutil.Process()
    total = 0
    for process in (own, *own.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.Error:  # it ended between listing and reading
            continue
    return total
