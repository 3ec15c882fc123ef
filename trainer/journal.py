"""metrics.jsonl of a run: one record a line, written whole, so that a resume never doubles one."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pipeline.commit import Generation
from pipeline.contract import METRICS_JSONL
from trainer.attempt_fence import AttemptFence

# An object store has no append, so every write is of all records: the more there are the rarer, or
# a run of a million steps would send its 45 MB every five seconds.
_WRITE_SECONDS = 5.0
_WRITE_BYTES_PER_SECOND = 1e6
# What a record of each kind cannot be without.
_NEEDED = {
    "train": "attempt",
    "evaluation": "mlm_loss_nats",
    "rollback": "from_step",
    "warning": "text",
}


class Journal:
    """The records of a run so far; those after the step resumed from are dropped.

    Of returns to a checkpoint only `rollbacks` stay, which the state resumed from has behind it.
    Writing is done in a thread: a slow store holds no step up. What it fails with is raised by the
    next call that writes.
    """

    def __init__(
        self, fence: AttemptFence, step: int, rollbacks: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self._fence = fence
        # Kept: a client of an object store takes longer to make than a record to write.
        self._storage = fence.generation.storage
        self._lines: list[str] = []
        self._bytes = 0
        self._evaluated = (-1, 0)  # step and line of the last evaluation
        # Long ago: who watches a run sees its first record at once.
        self._written = -math.inf
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._in_flight: Future[None] | None = None
        for record in read_journal(fence.generation):
            if record["kind"] == "rollback":
                stays = any(one.items() <= record.items() for one in rollbacks)
            else:
                stays = record["step"] <= step
            if stays:
                self._add(record)

    def add(self, record: dict[str, Any]) -> None:
        """Add a record; the first reaches the store at once, others within seconds or a minute."""
        self._add(record)
        seconds = max(_WRITE_SECONDS, self._bytes / _WRITE_BYTES_PER_SECOND)
        is_idle = self._in_flight is None or self._in_flight.done()
        if is_idle and time.monotonic() - self._written >= seconds:
            self.write()

    def _add(self, record: dict[str, Any]) -> None:
        if record["kind"] == "evaluation":
            step, index = self._evaluated
            # A run killed between an evaluation and what follows from it evaluates once more.
            if record["step"] == step:
                self._bytes -= len(self._lines.pop(index))
            self._evaluated = (record["step"], len(self._lines))
        self._lines.append(json.dumps(record))
        self._bytes += len(self._lines[-1])

    def write(self, beside: Mapping[str, bytes] | None = None) -> Future[None]:
        """Begin to write the records there are now, after what is being written already.

        And objects `beside` them, by their names in the generation. ConflictError in the result if
        a later attempt has begun.
        """
        if self._in_flight is not None and self._in_flight.done():
            self._in_flight.result()
        texts = {METRICS_JSONL: "".join(f"{line}\n" for line in self._lines).encode()}
        self._in_flight = self._thread.submit(self._write, {**texts, **(beside or {})})
        self._written = time.monotonic()
        return self._in_flight

    def close(self) -> None:
        """Write what there is, wait for it and end the thread; raises what writing failed with."""
        try:
            self.write().result()
        finally:
            self._thread.shutdown()

    def _write(self, objects: Mapping[str, bytes]) -> None:
        self._fence.require_newest(self._storage)
        for name, data in objects.items():
            self._storage.replace(self._fence.generation.name(name), data)


def read_journal(generation: Generation) -> list[dict[str, Any]]:
    """Return a run's records, oldest first; none before the first was written.

    Lines that are no records are left out: `unreadable_lines` counts them. A log that was damaged
    must not stop a training.
    """
    return [record for record in map(_record, _lines(generation)) if record is not None]


def unreadable_lines(generation: Generation) -> int:
    """Return how many lines of a run's journal are no records."""
    return sum(_record(line) is None for line in _lines(generation))


def _lines(generation: Generation) -> list[bytes]:
    storage, name = generation.storage, generation.name(METRICS_JSONL)
    if storage.size(name) is None:
        return []
    return [line for line in storage.read(name).split(b"\n") if line]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        return None
    needed = _NEEDED.get(record.get("kind", ""))
    return record if needed in record else None
