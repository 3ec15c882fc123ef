"""The loader over a real S3 server, and over a proxy that does what networks do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.errors import LastingStorageError, StorageError
from pipeline.instance_set import InstanceSet
from pipeline.storage import open_storage, s3_client
from tests.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.s3_server import BUCKET
from tests.trainer.instance_fixture import write_instance_set
from tests.trainer.loading import evaluate, global_steps, open_loader, sequences, take

# boto3's own sockets are left to the collector.
pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def proxy(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before the server; what is opened from here on goes through it."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3_client, "READ_SECONDS", 1.0)
    with fault_proxy(s3["AWS_ENDPOINT_URL_S3"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        yield proxy


@pytest.fixture(autouse=True)
def _steps_are_made_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else a chunk reads a set as small as these many times over.
    monkeypatch.setattr("trainer.loader._CHUNK_ROWS", 1)
    monkeypatch.setattr("trainer.loader._CHUNK_ROWS_PER_LANE", 1)


@pytest.fixture
def instances(proxy: FaultProxy, request: pytest.FixtureRequest) -> InstanceSet:
    return write_instance_set(f"s3://{BUCKET}/loader/{request.node.name}")


def test_batches_are_the_same_whatever_the_store_and_the_network_do(
    instances: InstanceSet, proxy: FaultProxy
) -> None:
    expected = global_steps(instances, 12, world_size=1)
    held_out = sequences(list(evaluate(instances, world_size=1, rank=0)))
    kinds: tuple[Any, ...] = ("slow_down", "reset", "cut_body", "unavailable", "lost_answer")
    proxy.script(*(Fault(kind=kind, contains=".arrow", times=2, every=5) for kind in kinds))
    assert global_steps(instances, 12, world_size=1) == expected
    assert min(proxy.injected[kind] for kind in kinds) >= 1
    proxy.script(Fault(kind="reset", contains=".arrow"), Fault(kind="hang", contains=".arrow"))
    assert sequences(list(evaluate(instances, world_size=1, rank=0))) == held_out


def test_tokens_are_planned_from_sidecars_that_take_two_tries(
    instances: InstanceSet, proxy: FaultProxy
) -> None:
    layout: dict[str, Any] = {"unit": "tokens", "batch_size": 150}
    expected = global_steps(instances, 12, world_size=2, **layout)
    proxy.script(Fault(kind="slow_down", contains=".lengths"))
    assert global_steps(instances, 12, world_size=2, **layout) == expected
    assert proxy.injected["slow_down"] == 1


def test_a_shard_that_vanishes_while_it_is_read_is_named(instances: InstanceSet) -> None:
    shard = instances.shards("train")[2]
    with open_loader(instances, read_ahead_bytes=1, prefetch=1) as loader:
        next(loader)
        storage = open_storage(instances.generation.root)
        storage.delete(instances.generation.name(shard.object.name))
        named = rf"{shard.object.name}: cannot read: NoSuchKey"
        with pytest.raises(LastingStorageError, match=named):
            take(loader, 100)


def test_a_store_that_is_gone_for_good_ends_the_run_with_its_name(
    instances: InstanceSet, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    proxy.script(Fault(kind="unavailable", contains=".arrow", times=1000))
    with (
        open_loader(instances) as loader,
        pytest.raises(StorageError, match=r"ServiceUnavailable.*the store is too") as caught,
    ):
        next(loader)
    assert caught.type is StorageError  # which a restart may find back
