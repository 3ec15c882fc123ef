"""The object store against a real S3 server: conditions, ranges, rights."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.errors import ConflictError, LastingStorageError, StorageError
from pipeline.storage import Storage, open_storage
from tests.s3_server import BUCKET, READER

# boto3's own sockets are left to the collector.
pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def test_what_was_created_is_read_whole_and_by_range(store: Storage) -> None:
    store.create("a/b.bin", b"0123456789")
    assert store.read("a/b.bin") == b"0123456789"
    assert store.view("a/b.bin") == store.read("a/b.bin")
    assert store.read_range("a/b.bin", 3, 4) == b"3456"
    assert store.read_range("a/b.bin", 0, 0) == b""
    assert store.read_range("a/b.bin", 8, 5) == b"89"
    assert store.read_range("a/b.bin", 20, 5) == b""
    assert store.size("a/b.bin") == 10
    assert store.size("a/c.bin") is None
    with pytest.raises(LastingStorageError, match=r"a/c\.bin: cannot read: NoSuchKey .request id"):
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


SECRET = "a-secret-that-is-wrong"


@pytest.mark.parametrize(
    ("variables", "bucket", "code", "remedy"),
    [
        ({"AWS_SECRET_ACCESS_KEY": SECRET}, BUCKET, "SignatureDoesNotMatch", "the credentials"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, BUCKET, "InvalidAccessKeyId", "the credentials"),
        (READER, BUCKET, "AccessDenied", "give these credentials the right to write there"),
        ({}, "no-such-bucket", "NoSuchBucket", "create the bucket"),
    ],
    ids=["wrong secret", "unknown key", "read-only key", "missing bucket"],
)
def test_a_refused_write_names_object_code_request_and_remedy_and_no_secret(
    store: Storage,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    bucket: str,
    code: str,
    remedy: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refused = open_storage(f"s3://{bucket}/x")
    for write, name in ((lambda: refused.create("y", b"1"), "y"), (refused.prepare, "write_check")):
        with pytest.raises(LastingStorageError) as caught:
            write()
        message = str(caught.value)
        place = re.escape(f"s3://{bucket}/x/{name}")
        assert re.match(
            rf"{place}: cannot write: {code}( after 3 attempts)? \(request id [0-9A-F]+\); ",
            message,
        )
        assert remedy in message
        assert os.environ["AWS_SECRET_ACCESS_KEY"] not in message


def test_a_store_that_can_be_written_is_prepared_once_for_all(store: Storage) -> None:
    for _ in range(2):
        store.prepare()
    assert [name for name, _ in store.list("")] == ["write_check"]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"AWS_PROFILE": "absent"}, r"\(absent\) could not be found.*correct AWS_PROFILE"),
        ({"AWS_ENDPOINT_URL_S3": "nonsense"}, r"Invalid endpoint: nonsense.*correct the AWS"),
    ],
)
def test_settings_that_make_no_client_are_explained(
    store: Storage, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LastingStorageError, match=f"cannot connect: .*{message}"):
        open_storage(store.uri)


def test_missing_credentials_are_explained(
    store: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(
        StorageError, match=r"Unable to locate credentials \(request id none\); cor"
    ) as caught:
        open_storage(store.uri).read("x")
    # The service of a machine that gives them out may only not have answered.
    assert caught.type is StorageError
