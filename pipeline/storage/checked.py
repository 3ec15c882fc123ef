"""Reading bytes whose checksum is known, once more if they are not what they should be."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.errors import CorruptError
from pipeline.storage.retries import count_retry

_READS = 3


def read_checked(read: Callable[[], bytes], check: Callable[[bytes], None]) -> bytes:
    """Return bytes that `check` takes; it raises CorruptError for others.

    What was damaged on its way is whole when it is read again; what is damaged in the store is
    not, and the last error is raised.
    """
    for _ in range(_READS - 1):
        data = read()
        try:
            check(data)
            return data
        except CorruptError:
            count_retry()
    data = read()
    check(data)
    return data
