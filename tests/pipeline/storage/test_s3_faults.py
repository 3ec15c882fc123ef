"""What an object store and the network before it do to requests, and what comes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pipeline.commit import Generation
from pipeline.errors import CorruptError, StorageError
from pipeline.storage import Storage, open_storage, s3_client, storage_retries
from tests.fault_proxy import REQUEST_ID, Fault, FaultProxy, Kind
from tests.integration.product import wait_until
from tests.ports import free_port

# boto3's own sockets are left to the collector.
pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("ignore::ResourceWarning")]
KINDS: tuple[Kind, ...] = ("slow_down", "reset", "access_denied", "hang", "internal_error")


def test_each_operation_survives_a_fault_of_each_kind(
    proxied: Storage, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What two faults cost, and longer than any answer of the real server takes.
    monkeypatch.setattr(s3_client, "READ_SECONDS", 3.0)
    proxied = open_storage(proxied.uri)
    operations: list[tuple[Callable[[], object], object]] = [
        (proxied.prepare, None),
        (lambda: proxied.create("x", b"0123456789"), None),
        (lambda: proxied.read("x"), b"0123456789"),
        (lambda: proxied.read_range("x", 2, 3), b"234"),
        (lambda: proxied.size("x"), 10),
        (lambda: proxied.size("y"), None),
        (lambda: list(proxied.list("x")), [("x", 10)]),
        (lambda: proxied.replace("p", b"1"), None),
        (lambda: proxied.replace_if("p", b"1", b"2"), True),
        (lambda: proxied.delete("x"), None),
    ]
    before = storage_retries()
    for number, (operation, result) in enumerate(operations):
        kind = KINDS[number % len(KINDS)]
        proxy.script(Fault(kind=kind))
        assert operation() == result, (number, kind)
    assert proxy.injected == dict.fromkeys(KINDS, 2)
    assert storage_retries() - before == len(operations)


@pytest.mark.parametrize("times", [1, 4])
def test_a_body_that_is_cut_is_read_on_from_where_it_broke(
    proxied: Storage, proxy: FaultProxy, times: int
) -> None:
    data = bytes(range(256)) * (16 << 10)
    proxied.create("large", data)
    proxy.script(Fault(kind="cut_body", times=times))
    asked = len(proxy.requests)
    assert proxied.read("large") == data
    spans = [span for _, _, span in proxy.requests[asked:]]
    assert len(spans) == times + 1
    # The first half of the rest is there each time, so the next request begins in its middle.
    assert spans[:2] == ["", f"bytes={len(data) // 2}-{len(data) - 1}"]
    proxy.script(Fault(kind="cut_body"))
    assert proxied.read_range("large", 100, 3_000_000) == data[100:3_000_100]
    proxy.script(Fault(kind="cut_body", method="GET"))
    assert list(proxied.list("large")) == [("large", len(data))]


def test_bytes_that_were_changed_on_their_way_are_read_again(
    proxied: Storage, proxy: FaultProxy
) -> None:
    generation = Generation(proxied.uri, "documents", "f" * 20)
    data = bytes(range(256)) * 8192
    entry = generation.create("x.arrow", data)
    for times in (1, 2):
        proxy.script(Fault(kind="changed_byte", method="GET", times=times))
        assert generation.read(entry) == data
    proxy.script(Fault(kind="changed_byte", method="GET", times=100))
    with pytest.raises((CorruptError, StorageError), match=r"x\.arrow"):
        generation.read(entry)


def test_a_pointer_replaced_between_two_halves_of_its_body_is_read_whole(
    store: Storage, proxied: Storage, proxy: FaultProxy
) -> None:
    store.replace("pointer", b"a" * 1000)
    seen: list[bytes] = []
    proxy.script(Fault(kind="cut_body"), Fault(kind="hang"))
    reader = threading.Thread(target=lambda: seen.append(proxied.read("pointer")))
    reader.start()
    wait_until(lambda: proxy.injected["hang"], "the second half was asked for")
    store.replace("pointer", b"b" * 1000)
    proxy.release()
    reader.join()
    assert seen == [b"b" * 1000]


def test_a_write_whose_answer_was_lost_is_done_once(proxied: Storage, proxy: FaultProxy) -> None:
    proxy.script(Fault(kind="lost_answer"))
    proxied.create("x", b"data")
    assert proxied.read("x") == b"data"
    proxy.script(Fault(kind="lost_answer", method="PUT"))
    # The repetition finds the first one's work: whose it is must be looked up.
    assert not proxied.replace_if("pointer", None, b"mine")
    assert proxied.read("pointer") == b"mine"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "slow_down",
            f"SlowDown after 2 attempts (request id {REQUEST_ID}); the store is too busy",
        ),
        ("reset", "(request id none); see whether the endpoint is right"),
        ("hang", "(request id none); see whether the endpoint is right"),
    ],
)
def test_what_does_not_end_is_told_with_object_request_and_remedy(
    proxied: Storage,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    message: str,
) -> None:
    monkeypatch.setattr(s3_client, "ATTEMPTS", 2)
    if kind == "hang":
        monkeypatch.setattr(s3_client, "READ_SECONDS", 1.0)
    storage = open_storage(proxied.uri)
    proxy.script(Fault(kind=kind, times=100))
    with pytest.raises(StorageError) as caught:
        storage.create("x", b"data")
    assert str(caught.value).startswith(f"{storage.uri}/x: cannot write: ")
    assert message in str(caught.value)
    assert caught.type is StorageError  # not a lasting one
    assert proxy.injected[kind] == 2


def test_a_body_that_breaks_each_time_is_told_at_last(
    proxied: Storage, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "ATTEMPTS", 2)
    storage = open_storage(proxied.uri)
    storage.create("x", b"1")
    proxy.script(Fault(kind="cut_body", times=100))
    with pytest.raises(StorageError, match=r"x: cannot read: .*\(request id none\); see whether"):
        storage.read("x")


def test_an_endpoint_where_nobody_listens_is_named(
    proxied: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(StorageError, match=r"Could not connect.*127\.0\.0\.1.*endpoint is right"):
        open_storage(proxied.uri).prepare()
