"""Reading ahead: in order, within its limit, and what several lanes share only once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.errors import StorageError
from trainer.data.read_ahead import Read, ReadAhead


class Source:
    """Record batches of 10 bytes each; counts what was fetched."""

    def __init__(self, fails: int = -1) -> None:
        self.fetched: list[int] = []
        self.fails = fails

    def fetch(self, batch: int) -> str:
        self.fetched.append(batch)
        if batch == self.fails:
            raise StorageError(f"batch {batch} is gone")
        return f"batch {batch}"


def reads(*batches: int, uses: int = 1) -> Iterator[Read | None]:
    for batch in batches:
        yield Read(epoch=0, batch=batch, uses=uses, bytes=10)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def settled(pool: ThreadPoolExecutor, source: Source) -> list[int]:
    """What was fetched once the one thread has done all that it was given."""
    pool.submit(int).result()
    return list(source.fetched)


def test_it_reads_as_far_ahead_as_its_limit_and_no_farther(pool: ThreadPoolExecutor) -> None:
    source = Source()
    ahead = ReadAhead(source.fetch, reads(*range(20)), limit_bytes=30, pool=pool)
    assert settled(pool, source) == [0, 1, 2]
    for batch in range(17):
        assert ahead.get(0, batch) == f"batch {batch}"
        assert settled(pool, source) == list(range(batch + 4))
    assert [ahead.get(0, batch) for batch in (17, 18, 19)] == ["batch 17", "batch 18", "batch 19"]


def test_what_comes_before_its_turn_is_fetched_with_what_is_before_it(
    pool: ThreadPoolExecutor,
) -> None:
    source = Source()
    ahead = ReadAhead(source.fetch, reads(*range(9)), limit_bytes=10, pool=pool)
    assert ahead.get(0, 4) == "batch 4"
    assert settled(pool, source) == [0, 1, 2, 3, 4]
    assert [ahead.get(0, batch) for batch in (2, 0, 1, 3, 5)]
    assert settled(pool, source) == [0, 1, 2, 3, 4, 5, 6]


def test_what_two_lanes_want_is_fetched_once_and_kept_until_both_had_it(
    pool: ThreadPoolExecutor,
) -> None:
    source = Source()
    ahead = ReadAhead(source.fetch, reads(0, 1, uses=2), limit_bytes=100, pool=pool)
    assert [ahead.get(0, batch) for batch in (0, 1, 1, 0)] == [
        "batch 0",
        "batch 1",
        "batch 1",
        "batch 0",
    ]
    assert source.fetched == [0, 1]
    assert not ahead.held


def test_it_stops_where_no_more_is_to_be_read_now_and_goes_on_when_asked(
    pool: ThreadPoolExecutor,
) -> None:
    source = Source()
    is_open = threading.Event()

    def gated() -> Iterator[Read | None]:
        yield from reads(0)
        while not is_open.is_set():
            yield None
        yield from reads(1)

    ahead = ReadAhead(source.fetch, gated(), limit_bytes=100, pool=pool)
    assert ahead.get(0, 0) == "batch 0"
    assert settled(pool, source) == [0]
    is_open.set()
    assert ahead.get(0, 1) == "batch 1"


def test_a_failure_is_told_when_its_record_batch_is_asked_for(pool: ThreadPoolExecutor) -> None:
    source = Source(fails=1)
    ahead = ReadAhead(source.fetch, reads(0, 1, 2), limit_bytes=100, pool=pool)
    assert ahead.get(0, 0) == "batch 0"
    for _ in range(2):
        with pytest.raises(StorageError, match="batch 1 is gone"):
            ahead.get(0, 1)
    assert ahead.get(0, 2) == "batch 2"
