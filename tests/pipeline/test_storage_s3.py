"""The object store against a real S3 server: conditions, ranges, rights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.errors import ConflictError, StorageError
from pipeline.storage import Storage, open_storage
from tests.s3_server import BUCKET, READER

# boto3's own sockets are left to the collector.
pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def store(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Storage:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    return open_storage(f"s3://{BUCKET}/{request.node.name}")


def test_what_was_created_is_read_whole_and_by_range(store: Storage) -> None:
    store.create("a/b.bin", b"0123456789")
    assert store.read("a/b.bin") == b"0123456789"
    assert store.read_range("a/b.bin", 3, 4) == b"3456"
    assert store.read_range("a/b.bin", 0, 0) == b""
    assert store.size("a/b.bin") == 10
    assert store.size("a/c.bin") is None
    with pytest.raises(StorageError, match=r"a/c\.bin: cannot read: NoSuchKey .request id"):
        store.read("a/c.bin")


def test_an_object_is_created_once(store: Storage) -> None:
    store.create("x", b"ours")
    store.create("x", b"ours")
    with pytest.raises(ConflictError, match="exists with 4 bytes"):
        store.create("x", b"theirs")
    assert store.read("x") == b"ours"


def test_a_race_for_one_name_has_one_winner(store: Storage) -> None:
    def create(number: int) -> bool:
        try:
            store.create("marker", f"writer {number}".encode())
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(create, range(16)))
    assert won.count(True) == 1
    assert store.read("marker") == f"writer {won.index(True)}".encode()


def test_compare_and_swap_loses_no_update(store: Storage) -> None:
    store.create("counter", b"0")

    def increment(_: int) -> None:
        while True:
            found = store.read("counter")
            if store.replace_if("counter", found, str(int(found) + 1).encode()):
                return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(12)))
    assert store.read("counter") == b"12"


def test_objects_are_listed_in_order_and_deleted(store: Storage) -> None:
    for name in ("b/2", "b/1", "c"):
        store.create(name, name.encode())
    assert list(store.list("b/")) == [("b/1", 3), ("b/2", 3)]
    store.delete("b/1")
    store.delete("b/1")
    assert [name for name, _ in store.list("")] == ["b/2", "c"]


@pytest.mark.parametrize(
    ("variables", "uri", "code"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, f"s3://{BUCKET}/x", "SignatureDoesNotMatch"),
        (READER, f"s3://{BUCKET}/x", "AccessDenied"),
        ({}, "s3://no-such-bucket/x", "NoSuchBucket"),
    ],
    ids=["wrong key", "read-only key", "missing bucket"],
)
def test_a_refused_write_names_object_code_and_remedy(
    store: Storage,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    uri: str,
    code: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageError, match=f"{uri}/y: cannot write: {code}.*check the bucket"):
        open_storage(uri).create("y", b"data")
