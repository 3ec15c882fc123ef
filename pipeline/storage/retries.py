"""How often a store made this process ask again."""

from __future__ import annotations

import itertools
import random
import time

_LONGEST_PAUSE_SECONDS = 20.0

_counter = itertools.count(1)  # one step of it is atomic, whatever thread takes it
_retries = 0


def storage_retries() -> int:
    """Return how many requests this process has had to repeat since it began."""
    return _retries


def count_retry() -> None:
    """Count a request that is repeated."""
    global _retries
    _retries = next(_counter)


def pause(failures: int) -> None:
    """Wait before another attempt, longer after each failure, at most 20 seconds.

    By chance, so that workers who failed together do not come back together; nothing that is
    written depends on it.
    """
    time.sleep(random.uniform(0.0, min(2.0 ** (failures - 1), _LONGEST_PAUSE_SECONDS)))
