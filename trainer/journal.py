"""metrics.jsonl of a run: one record a line, written whole, so that a resume never doubles one."""

from __future__ import annotations

import json
import time
from typing import Any

from pipeline.commit import Generation, parse_json
from trainer.checkpoint import AttemptFence

METRICS_JSONL = "metrics.jsonl"
# A record a second at most goes to the store: an object store has no append.
_FLUSH_SECONDS = 5.0


class Journal:
    """The records of a run so far; those after the step resumed from are dropped."""

    def __init__(self, fence: AttemptFence, step: int) -> None:
        generation = fence.generation
        self._fence = fence
        self._storage = generation.storage
        self._name = generation.name(METRICS_JSONL)
        self._lines: list[str] = []
        self._last: tuple[str, int] | None = None
        self._flushed = time.monotonic()
        for record in read_journal(generation):
            if record["step"] <= step:
                self._add(record)

    def write(self, record: dict[str, Any]) -> None:
        """Add a record; it reaches the store within seconds."""
        self._add(record)
        if time.monotonic() - self._flushed >= _FLUSH_SECONDS:
            self.flush()

    def _add(self, record: dict[str, Any]) -> None:
        what = (record["kind"], record["step"])
        # A run killed between its last evaluation and its result evaluates once more.
        if what == self._last:
            self._lines.pop()
        self._lines.append(json.dumps(record))
        self._last = what

    def flush(self) -> None:
        """Write every record to the store; ConflictError if a later attempt has begun."""
        self._fence.require_newest(self._storage)
        self._storage.replace(self._name, "".join(f"{line}\n" for line in self._lines).encode())
        self._flushed = time.monotonic()


def read_journal(generation: Generation) -> list[dict[str, Any]]:
    """Return a run's records, oldest first; none before the first was written."""
    storage, name = generation.storage, generation.name(METRICS_JSONL)
    if storage.size(name) is None:
        return []
    uri = f"{storage.uri}/{name}"
    return [parse_json(line, uri) for line in storage.read(name).split(b"\n") if line]
