"""A rank of a run, and what rank 0 does for all of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed as dist

from trainer.checkpoint_requests import CheckpointRequests

# Well below the time after which a collective gives up, however that is set.
_NOTICE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Worker:
    """One rank of a run and what it computes on."""

    rank: int
    world_size: int
    device: torch.device
    group: dist.ProcessGroup | None
    requests: CheckpointRequests = field(default_factory=CheckpointRequests)
    """Checkpoints asked for on this rank."""

    def use_device(self) -> None:
        """Make the rank's GPU the process's own, before any collective picks the first one."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)


def from_rank_zero(worker: Worker, function: Callable[[], Any]) -> Any:
    """Return on every rank what `function`, called on rank 0 alone, returns (it is pickled).

    It may take as long as it likes: a notice that it is still at work goes out often enough that no
    collective of the other ranks ends by its time limit. What it raises is raised on rank 0.
    """
    if worker.group is None:
        return function()
    if worker.rank != 0:
        while True:
            message: list[Any] = [None]
            _broadcast(worker, message)
            if message[0] is not None:
                return message[0][0]
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="rank-zero") as thread:
        result = thread.submit(function)
        while not wait([result], timeout=_NOTICE_SECONDS).done:
            _broadcast(worker, [None])
        _broadcast(worker, [(result.result(),)])
        return result.result()


def _broadcast(worker: Worker, message: list[Any]) -> None:
    dist.broadcast_object_list(message, src=0, group=worker.group, device=worker.device)
