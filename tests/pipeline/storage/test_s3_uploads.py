"""Large objects: parts, one winner, nothing left of what fails or is killed."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.errors import ConflictError, StorageError
from pipeline.storage import Storage, open_storage, s3_client, s3_uploads, sha256
from tests.fault_proxy import Fault, FaultProxy
from tests.integration.product import wait_until

# boto3's own sockets are left to the collector.
pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("ignore::ResourceWarning")]
CHECKOUT = Path(__file__).parents[3]
PART_BYTES = 5 << 20  # the least that S3 takes
DATA = bytes(range(256)) * (PART_BYTES * 5 // 2 // 256)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_uploads, "MULTIPART_BYTES", PART_BYTES)
    monkeypatch.setattr(s3_uploads, "PART_BYTES", PART_BYTES)


def parts_sent(proxy: FaultProxy) -> int:
    return sum("partNumber" in target for _, target, _ in proxy.requests)


def test_a_large_object_goes_in_parts_and_is_created_once(
    proxied: Storage, proxy: FaultProxy
) -> None:
    proxied.create("large", DATA)
    assert parts_sent(proxy) == 3
    assert proxied.read("large") == DATA
    proxied.create("large", DATA)
    assert parts_sent(proxy) == 3  # what is there is not sent again
    other = DATA[:-1] + b"!"
    with pytest.raises(ConflictError) as caught:
        proxied.create("large", other)
    for digest in (sha256(DATA), sha256(other)):
        assert digest in str(caught.value)
    assert proxied.read("large") == DATA
    assert list(proxied.leftovers("")) == []


def test_a_race_of_uploads_has_one_winner_and_leaves_no_parts(proxied: Storage) -> None:
    # Each its own client, as in processes of their own.
    data = [bytes([number]) * (PART_BYTES + 1) for number in range(4)]

    def create(number: int) -> bool:
        try:
            open_storage(proxied.uri).create("large", data[number])
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(create, range(4)))
    assert won.count(True) == 1
    assert proxied.read("large") == data[won.index(True)]
    assert list(proxied.leftovers("")) == []


def test_faults_of_parts_and_a_lost_answer_at_the_end_are_survived(
    proxied: Storage, proxy: FaultProxy
) -> None:
    proxy.script(
        Fault(kind="slow_down", contains="partNumber=1"),
        Fault(kind="reset", contains="partNumber=2"),
        Fault(kind="lost_answer", method="POST", contains="uploadId"),
    )
    proxied.create("large", DATA)
    assert proxy.injected == {"slow_down": 1, "reset": 1, "lost_answer": 1}
    assert proxied.read("large") == DATA
    assert list(proxied.leftovers("")) == []


def test_an_upload_that_fails_is_aborted(
    proxied: Storage, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "ATTEMPTS", 1)
    storage = open_storage(proxied.uri)
    proxy.script(Fault(kind="unavailable", contains="partNumber=2", times=100))
    with pytest.raises(StorageError, match="large: cannot write: ServiceUnavailable"):
        storage.create("large", DATA)
    assert storage.size("large") is None
    assert list(storage.leftovers("")) == []


UPLOAD = f"""
    import sys
    from pipeline.storage import open_storage, s3_uploads
    s3_uploads.MULTIPART_BYTES = s3_uploads.PART_BYTES = {PART_BYTES}
    data = bytes(range(256)) * ({len(DATA)} // 256)
    open_storage(sys.argv[1]).create("instances/f/large", data)
"""


def test_a_killed_upload_shows_nothing_and_gc_removes_its_parts(
    store: Storage, proxied: Storage, proxy: FaultProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.script(Fault(kind="hang", contains="partNumber=3"))
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(UPLOAD), proxied.uri], cwd=CHECKOUT
    )
    try:
        wait_until(lambda: proxy.injected["hang"], "the last part was on its way")
    finally:
        writer.kill()
        writer.wait()
    proxy.release()
    name = "instances/f/large"
    assert store.size(name) is None
    assert list(store.list("")) == []
    (left,) = store.leftovers("instances/")
    assert (left.name, left.bytes <= len(DATA), bool(left.upload_id)) == (name, True, True)

    store.create(name, DATA)
    assert store.read(name) == DATA
    assert main(["gc", store.uri, "--delete"]) == 0
    assert "1 begun less than 24 hours ago stay" in capsys.readouterr().out
    assert [one.upload_id for one in store.leftovers("")] == [left.upload_id]
    assert main(["gc", store.uri, "--delete", "--leftover_hours", "0"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"incomplete uploads of killed writers: 1, [\d,]+ bytes", said)
    assert list(store.leftovers("")) == []
    store.remove_leftover(left)  # gone already
    assert store.read(name) == DATA
