"""Record batches fetched by threads before they are asked for, within a limit of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One record batch that will be asked for."""

    epoch: int
    batch: int
    uses: int
    """How often it will be asked for in its epoch."""
    bytes: int
    """Memory it takes."""


@dataclass(slots=True)
class _Held(Generic[T]):
    read: Read
    fetched: Future[T]
    uses: int
    is_ahead: bool = True


class ReadAhead(Generic[T]):
    """What `fetch` returns of the record batches `reads`, which is read in their order.

    A None among `reads` says that no more is to be read ahead now.
    Ahead of the consumer are `limit_bytes` at most and one record batch more. One that has uses
    left is kept beyond that until the last. A failed fetch raises when its record batch is asked
    for, each time.
    """

    def __init__(
        self,
        fetch: Callable[[int], T],
        reads: Iterator[Read | None],
        *,
        limit_bytes: int,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._fetch = fetch
        self._reads = reads
        self._limit_bytes = limit_bytes
        self._pool = pool
        self._bytes_ahead = 0
        self.held: dict[tuple[int, int], _Held[T]] = {}
        self._fill()

    def get(self, epoch: int, batch: int) -> T:
        """Return a record batch; raises what `fetch` raised."""
        key = epoch, batch
        while key not in self.held:
            # Asked for a little before its turn: steps are made some at a time.
            read = next(self._reads)
            if read is not None:
                self._submit(read)
        held = self.held[key]
        fetched = held.fetched.result()
        held.uses -= 1
        if held.is_ahead:
            held.is_ahead = False
            self._bytes_ahead -= held.read.bytes
        if held.uses == 0:
            del self.held[key]
        self._fill()
        return fetched

    def _fill(self) -> None:
        while self._bytes_ahead < self._limit_bytes:
            read = next(self._reads, None)
            if read is None:
                return
            self._submit(read)

    def _submit(self, read: Read) -> None:
        self._bytes_ahead += read.bytes
        fetched = self._pool.submit(self._fetch, read.batch)
        self.held[read.epoch, read.batch] = _Held(read, fetched, read.uses)
