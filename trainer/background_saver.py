"""Checkpoints written in a thread, from a copy: training waits for one memory copy only."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from pipeline.config import require
from pipeline.contract import canonical_json
from trainer.attempt_fence import AttemptFence
from trainer.checkpoint import CheckpointRef, write
from trainer.retention import Evaluated, abandon, retain, set_best


class BackgroundSaver:
    """Saves checkpoints of one attempt, one at a time, and retires old ones after each.

    A failed save is raised by the next call, and by `close` at the latest. The copy's memory
    is kept for the next save.
    """

    def __init__(self, fence: AttemptFence, *, keep: int, keep_every_steps: int = 0) -> None:
        require(keep >= 1, "training.keep_checkpoints", keep, "must be at least 1")
        self._fence = fence
        self._keep = keep
        self._keep_every_steps = keep_every_steps
        self._copies: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}}
        self._in_flight: Future[CheckpointRef] | None = None
        self._newest: CheckpointRef | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

    def save(
        self,
        *,
        step: int,
        model: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        state: Mapping[str, Any],
        best: Evaluated | None = None,
        abandons_later: bool = False,
        after: Future[None] | None = None,
    ) -> None:
        """Copy everything and start to write; waits for a save in flight first.

        `best` is given where the checkpoint is the best one so far; `abandons_later` where the run
        has gone back, and those of later steps are to be withdrawn. It is written once `after` is
        done, and not where that failed; a step that was saved already is not written again.
        Raises what the save in flight failed with.
        """
        newest = self.wait()
        written = newest if newest is not None and newest.step == step else None
        encoded = canonical_json(state)
        if written is None:
            self._copies = {
                "model": _copy(model, self._copies["model"]),
                "optimizer": _copy(optimizer, self._copies["optimizer"]),
            }
        self._in_flight = self._thread.submit(
            self._write, step, written, encoded, best, abandons_later, after
        )

    @property
    def is_busy(self) -> bool:
        """Whether a save is still being written."""
        return self._in_flight is not None and not self._in_flight.done()

    def raise_failure(self) -> None:
        """Raise what the save in flight failed with, if it has ended so."""
        if self._in_flight is not None and self._in_flight.done():
            self._in_flight.result()

    def wait(self) -> CheckpointRef | None:
        """Wait for the save in flight; return the newest that was committed, None without one."""
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is not None:
            self._newest = in_flight.result()
        return self._newest

    def close(self) -> None:
        """Wait for the save in flight and end the thread; raises what the save failed with."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def _write(
        self,
        step: int,
        written: CheckpointRef | None,
        state: bytes,
        best: Evaluated | None,
        abandons_later: bool,
        after: Future[None] | None,
    ) -> CheckpointRef:
        if after is not None:
            after.result()
        copies = self._copies
        ref = written or write(self._fence, step, copies["model"], copies["optimizer"], state)
        if abandons_later:
            abandon(self._fence, after=step)
        if best is not None:
            set_best(self._fence, best)
        retain(self._fence, keep=self._keep, keep_every_steps=self._keep_every_steps)
        return ref

    def __enter__(self) -> BackgroundSaver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            # What ended the training comes first; that a save failed too is said beside it.
            error.add_note(f"the checkpoint in flight failed too: {failure}")


def _copy(tensors: Mapping[str, Tensor], reusable: Mapping[str, Tensor]) -> dict[str, Tensor]:
    copies = {}
    for name, tensor in tensors.items():
        copy = reusable.get(name)
        if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
            copy = torch.empty(tensor.shape, dtype=tensor.dtype)
        copies[name] = copy.copy_(tensor.detach())
    return copies
