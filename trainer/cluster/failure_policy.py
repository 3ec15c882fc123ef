"""Which failures of a worker a restart can heal, and the end of the run at any other."""

from __future__ import annotations

from typing import Any

from ray.train import UserCallback

from pipeline.errors import LastingStorageError, StorageError
from pipeline.ray_session import our_error


def healed_by_restart(error: BaseException) -> bool:
    """Say whether the worker group, started again from its last checkpoint, may get past `error`.

    It may where a worker, a node or a connection was lost, or a store did not answer or was full.
    It would meet changed bytes, a shard that is gone, a store that refuses it, wrong settings or a
    loss that is not finite again, and an attempt that a later one superseded must not come back.
    """
    ours = our_error(error)
    if isinstance(ours, LastingStorageError):
        return False
    return ours is None or isinstance(ours, StorageError)


class LastingFailures(UserCallback):
    """Ends the run with the first worker failure that no restart heals."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raise that failure: Ray Train retries what workers raise, and nothing raised here."""
        for error in worker_exceptions.values():
            ours = our_error(error)
            if ours is not None and not healed_by_restart(error):
                raise ours
