"""A store in the bucket of the session's S3 server, straight and through the fault proxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.storage import Storage, open_storage
from tests.fault_proxy import FaultProxy, fault_proxy
from tests.s3_server import BUCKET


@pytest.fixture
def store(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Storage:
    """A prefix of this test's own."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    return open_storage(f"s3://{BUCKET}/{request.node.name}")


@pytest.fixture
def proxy(s3: dict[str, str]) -> Iterator[FaultProxy]:
    with fault_proxy(s3["AWS_ENDPOINT_URL_S3"]) as running:
        yield running


@pytest.fixture
def proxied(store: Storage, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """The same prefix as `store`, seen through the proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
    return open_storage(store.uri)
