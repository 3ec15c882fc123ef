"""The local copy of record batches: verified, limited, shared by workers."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.contract import ShardEntry
from pipeline.errors import ConfigError, LastingStorageError, StorageError
from pipeline.instance_set import InstanceSet
from pipeline.storage import LocalStorage
from tests.trainer.instance_fixture import write_instance_set
from tests.trainer.loading import TRAIN_ROWS, global_steps
from trainer.data.record_cache import RecordCache


@pytest.fixture
def instances(tmp_path: Path) -> InstanceSet:
    return write_instance_set(tmp_path / "set")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is read of the store."""
    names: list[str] = []
    read_range = LocalStorage.read_range

    def counted(self: LocalStorage, name: str, offset: int, length: int) -> bytes:
        names.append(name)
        return read_range(self, name, offset, length)

    monkeypatch.setattr(LocalStorage, "read_range", counted)
    return names


def record_batches(instances: InstanceSet) -> list[tuple[ShardEntry, int]]:
    return [
        (shard, number)
        for shard in instances.shards("train")
        for number in range(len(shard.batch_rows))
    ]


def kept(folder: Path) -> dict[Path, int]:
    """The files of record batches and their sizes."""
    files = (path for path in folder.glob("*/**/*") if path.is_file())
    return {path: path.stat().st_size for path in files}


def test_what_was_read_once_comes_from_the_folder(
    instances: InstanceSet, tmp_path: Path, reads: list[str]
) -> None:
    expected = global_steps(instances, 30, world_size=1)
    reads.clear()
    for _ in range(2):
        cache = RecordCache(str(tmp_path / "cache"), 10**9)
        assert global_steps(instances, 30, world_size=1, cache=cache, read_threads=1) == expected
        assert len(reads) == len(record_batches(instances))
    assert 2 * TRAIN_ROWS < 30 * 8
    files = kept(tmp_path / "cache")
    assert int((tmp_path / "cache" / "bytes").read_text()) == sum(files.values())


def test_the_folder_keeps_to_its_limit_and_drops_what_was_used_longest_ago(
    instances: InstanceSet, tmp_path: Path, reads: list[str]
) -> None:
    batches = record_batches(instances)
    sizes = [shard.batch_offsets[at + 1] - shard.batch_offsets[at] for shard, at in batches]
    limit = sum(sizes) * 6 // 10
    cache = RecordCache(str(tmp_path / "cache"), limit)
    for at, (shard, number) in enumerate(batches):
        assert cache.read_message(instances, shard, number) == instances.read_message(shard, number)
        for place, path in enumerate(sorted(kept(tmp_path / "cache"))):
            os.utime(path, ns=(0, at * 1000 + place))  # clocks are coarse: be sure of the order
        cache.read_message(instances, *batches[0])  # used all the time
        assert sum(kept(tmp_path / "cache").values()) <= limit
    reads.clear()
    cache.read_message(instances, *batches[0])
    assert not reads
    cache.read_message(instances, *batches[1])
    assert len(reads) == 1


def test_a_changed_file_is_read_again_from_the_store_and_told(
    instances: InstanceSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = RecordCache(str(tmp_path / "cache"), 10**9)
    shard, number = record_batches(instances)[3]
    message = cache.read_message(instances, shard, number)
    (path,) = kept(tmp_path / "cache")
    path.write_bytes(message[:-1])
    with caplog.at_level(logging.WARNING):
        assert cache.read_message(instances, shard, number) == message
    assert str(path) in caplog.text
    assert path.read_bytes() == message
    assert int((tmp_path / "cache" / "bytes").read_text()) == len(message)


def _read_all(root: str, folder: str, limit: int, first: int) -> None:
    """Read every record batch three times through a cache of one's own."""
    instances = InstanceSet.open(root)
    cache = RecordCache(folder, limit)
    batches = record_batches(instances)
    for turn in range(3 * len(batches)):
        shard, number = batches[(first + turn) % len(batches)]
        expected = instances.read_message(shard, number)
        assert cache.read_message(instances, shard, number) == expected


def test_workers_share_a_folder_and_its_limit(instances: InstanceSet, tmp_path: Path) -> None:
    total = sum(shard.object.bytes for shard in instances.shards("train"))
    folder, limit = tmp_path / "cache", total // 2
    with ProcessPoolExecutor(2) as workers:
        jobs: list[Any] = [
            workers.submit(_read_all, str(tmp_path / "set"), str(folder), limit, first)
            for first in (0, 5)
        ]
        for job in jobs:
            job.result()
    # Two that write the same file at once count it twice: the folder then holds less.
    assert 0 < sum(kept(folder).values()) <= int((folder / "bytes").read_text()) <= limit


def test_a_folder_that_cannot_be_used_is_named(instances: InstanceSet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    named = r"training.cache_directory = .*/file: .*name another"
    with pytest.raises(LastingStorageError, match=named):
        RecordCache(str(tmp_path / "file"), 10)
    with pytest.raises(ConfigError, match=r"training.cache_bytes = 0"):
        RecordCache(str(tmp_path / "cache"), 0)
    cache = RecordCache(str(tmp_path / "cache"), 10**9)
    (tmp_path / "cache" / instances.generation.fingerprint).write_text("in the way")
    with pytest.raises(StorageError, match=r"training.cache_directory = "):
        cache.read_message(instances, *record_batches(instances)[0])


def test_a_count_that_was_lost_is_taken_anew(instances: InstanceSet, tmp_path: Path) -> None:
    cache = RecordCache(str(tmp_path / "cache"), 10**9)
    batches = record_batches(instances)
    cache.read_message(instances, *batches[0])
    (tmp_path / "cache" / "bytes").write_text("")
    cache.read_message(instances, *batches[1])
    assert int((tmp_path / "cache" / "bytes").read_text()) == sum(kept(tmp_path / "cache").values())


def test_what_a_killed_worker_was_writing_is_removed(tmp_path: Path) -> None:
    cut_off, fresh = tmp_path / ".tmp-old", tmp_path / ".tmp-new"
    for path in (cut_off, fresh):
        path.write_bytes(b"part of a record batch")
    os.utime(cut_off, (1.0, 1.0))
    RecordCache(str(tmp_path), 10**9)
    assert not cut_off.exists() and fresh.exists()
