"""Reading raw files from an object store that fails now and then."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.corpus import ReadReport, list_files, plan_splits, read_split
from pipeline.corpus.s3_file import S3File
from pipeline.errors import InputError
from pipeline.storage import Storage, open_storage, s3_client, storage_retries
from tests.fault_proxy import REQUEST_ID, Fault, FaultProxy, Kind, fault_proxy
from tests.pipeline.corpus.reading import read_all, source_of
from tests.s3_server import BUCKET

# boto3's own sockets are left to the collector.
pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("ignore::ResourceWarning")]
TEXT = b"".join(b"document %d\nline two\n\n" % number for number in range(60_000))


@pytest.fixture
def proxy(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    with fault_proxy(s3["AWS_ENDPOINT_URL_S3"]) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", running.url)
        yield running


@pytest.fixture
def store(proxy: FaultProxy, request: pytest.FixtureRequest) -> Storage:
    store = open_storage(f"s3://{BUCKET}/{re.sub(r'[^a-z_]', '-', request.node.name)}")
    table = io.BytesIO()
    pq.write_table(pa.table({"text": [f"row {n}" for n in range(500)]}), table, row_group_size=100)
    store.create("a.txt", TEXT)
    store.create("b.parquet", table.getvalue())
    return store


@pytest.mark.parametrize("kind", ["slow_down", "reset", "cut_body", "hang"])
def test_faults_change_nothing_that_is_read(
    store: Storage, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    if kind == "hang":
        monkeypatch.setattr(s3_client, "READ_SECONDS", 1.0)
    source = source_of(store.uri, "auto")
    undisturbed = read_all(source)
    assert len(undisturbed) == 60_500
    proxy.script(
        Fault(kind=kind, method="GET", contains="a.txt"),
        Fault(kind=kind, method="GET", contains="b.parquet"),
    )
    assert read_all(source) == undisturbed
    assert proxy.injected == {kind: 2}


@pytest.mark.parametrize("kind", ["slow_down", "cut_body"])
def test_what_pyarrow_gives_up_on_is_read_on_from_there(
    store: Storage, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    file = S3File(f"{store.uri}/a.txt")
    first = file.read(1 << 20)
    monkeypatch.setattr(s3_client, "ATTEMPTS", 2)
    impatient = S3File(f"{store.uri}/a.txt")
    impatient.seek(len(first))
    before = storage_retries()
    proxy.script(Fault(kind=kind, method="GET", times=2))
    asked = len(proxy.requests)
    assert first + impatient.read() == TEXT
    assert storage_retries() == before + 1
    spans = {span for _, _, span in proxy.requests[asked:]}
    assert spans == {f"bytes={len(first)}-{len(TEXT) - 1}"}
    impatient.close()
    file.close()


def test_what_does_not_end_names_object_request_and_remedy(
    store: Storage, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(store.uri, "auto")
    splits = plan_splits(source, list_files(source, 0), 1 << 40)
    monkeypatch.setattr(s3_client, "ATTEMPTS", 1)
    busy = rf"cannot read it: SlowDown .request id {REQUEST_ID}.; the store is too busy"
    for name in ("a.txt", "b.parquet"):
        proxy.script(Fault(kind="slow_down", contains=name, method="GET", times=100))
        with pytest.raises(InputError, match=f"{name}: {busy}"):
            [list(read_split(source, split, ReadReport())) for split in splits]
    proxy.script(Fault(kind="slow_down", contains="list-type", times=100))
    with pytest.raises(InputError, match=rf"cannot list: SlowDown .request id {REQUEST_ID}."):
        list_files(source, 0)


def test_an_object_that_is_rewritten_while_it_is_read_is_named(store: Storage) -> None:
    source = source_of(f"{store.uri}/a.txt", "text")
    (split,) = plan_splits(source, list_files(source, 0), 1 << 40)
    documents = read_split(source, split, ReadReport())
    next(documents)
    store.replace("a.txt", TEXT.replace(b"two", b"TWO"))
    with pytest.raises(InputError, match=r"a\.txt: changed since the job was planned"):
        list(documents)
