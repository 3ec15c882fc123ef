"""What says that workers will be stopped: SIGTERM, a draining node, a change of their number.

Each asks for a checkpoint. Training then goes on: whoever sent the notice decides when it ends, and
what is learned until then is not lost where the notice was a mistake.
"""

from __future__ import annotations

import logging
import signal
import time
from typing import Any

import ray
from ray.exceptions import RayError

# Ray's own way to ask (ray.train.get_preemption_info) is a call to another process and a barrier of
# all ranks, every step; the notice it returns lies in this process.
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.context import get_train_context

from trainer.checkpoint_requests import CheckpointRequests

_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.05

_log = logging.getLogger(__name__)


class WorkerRequests(CheckpointRequests):
    """The requests of this worker, with those of Ray's watch over draining nodes."""

    def __init__(self) -> None:
        super().__init__()
        self._drained: frozenset[str] = frozenset()

    def newest(self) -> int:
        """Return the number of the newest request; a node that is newly drained makes one."""
        notice = get_train_context().preemption_context.preemption_info
        if notice is not None and not self._drained.issuperset(notice.preempted_node_ids):
            self._drained |= set(notice.preempted_node_ids)
            self.ask()
        return super().newest()


REQUESTS = WorkerRequests()
"""Of this process, which is one worker of one group."""


class StopNotices(WorkerGroupCallback):
    """Makes workers hear SIGTERM, and save before Ray Train stops a group that still trains."""

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Install the handlers: Ray's own ends the process on SIGTERM."""
        worker_group.execute(_hear_sigterm)

    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        """Wait for a checkpoint of a group that is stopped without having failed or ended."""
        status = worker_group.get_latest_poll_status()
        if status is None or status.errors or status.finished:
            return
        try:
            asked = worker_group.execute_single_async(0, _save_before_stop)
            ray.get(asked, timeout=_STOP_SECONDS + 1.0)
        except RayError as error:
            # Its node went first; the newest checkpoint there is will do.
            _log.warning("a worker group was stopped before it saved a checkpoint: %s", error)


def _hear_sigterm() -> None:
    # Called on the main thread of the worker, where alone Python lets one set handlers.
    signal.signal(signal.SIGTERM, lambda *_: REQUESTS.ask())


def _save_before_stop() -> None:
    number = REQUESTS.ask()
    deadline = time.monotonic() + _STOP_SECONDS
    while REQUESTS.is_waiting(number) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
