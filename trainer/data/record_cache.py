"""Record batches of an object store on a local disk, up to a limit of bytes.

A file holds the IPC message of one record batch and is verified by the manifest's CRC-32 each
time it is used. All workers of a machine may share a folder: a file appears whole, by a rename,
and the bytes of all files stand in `bytes`, which is changed under a lock before one is written.
Where the limit would be passed, the files that were used longest ago go first.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.config import require
from pipeline.contract import ShardEntry
from pipeline.instance_set import InstanceSet
from pipeline.storage import disk_failure

_log = logging.getLogger(__name__)

# So much is freed at once, since finding the oldest files means looking at all of them.
_FREED_SHARE = 0.1
_TEMPORARY = ".tmp-"
# No write of a record batch takes so long: who began it was killed.
_ABANDONED_SECONDS = 3600.0


class RecordCache:
    """A folder of at most `limit_bytes`; safe in threads and between processes.

    Raises StorageError, which names the folder, where its disk cannot take what it should.
    """

    def __init__(self, folder: str, limit_bytes: int) -> None:
        require(limit_bytes >= 1, "training.cache_bytes", limit_bytes, "must be at least 1")
        self._folder = Path(folder).expanduser().absolute()
        self._limit_bytes = limit_bytes
        with self._explained():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()

    def read_message(self, instances: InstanceSet, shard: ShardEntry, number: int) -> bytes:
        """Return a verified record batch's IPC message, from the folder if it is there.

        A file with other bytes than the manifest's is removed and read again from the store.
        """
        name = f"{instances.generation.fingerprint}/{shard.object.name}/{number}"
        path = self._folder / name
        with self._explained():
            try:
                found = path.read_bytes()
            except FileNotFoundError:
                found = b""
            if found and zlib.crc32(found) == shard.batch_crc32[number]:
                with suppress(FileNotFoundError):  # another worker made room
                    os.utime(path)
                return found
            if found:
                _log.warning("%s: other bytes than the manifest's; read again from the store", path)
                with self._locked() as total, suppress(FileNotFoundError):
                    path.unlink()
                    total.bytes -= shard.batch_offsets[number + 1] - shard.batch_offsets[number]
        message = instances.read_message(shard, number)
        with self._explained():
            self._keep(path, message)
        return message

    def _keep(self, path: Path, message: bytes) -> None:
        if len(message) > self._limit_bytes:
            return
        with self._locked() as total:
            if path.exists():  # another worker was faster
                return
            if total.bytes + len(message) > self._limit_bytes:
                room = max(len(message), int(self._limit_bytes * _FREED_SHARE))
                total.bytes = self._shrink(self._limit_bytes - room)
            # Before the file is there: after a kill in between the folder holds less, not more.
            total.bytes += len(message)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(message)
            os.replace(temporary, path)
        except OSError:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise

    def _remove_abandoned(self) -> None:
        for path in self._folder.glob(f"{_TEMPORARY}*"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()

    def _shrink(self, limit_bytes: int) -> int:
        """Remove the files used longest ago until the rest has at most so many bytes."""
        files = sorted(self._files(), key=lambda one: one[0])
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= limit_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size
        return total

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """Yield (time of last use, bytes, path) of every record batch."""
        for folder, _, names in os.walk(self._folder):
            if Path(folder) == self._folder:
                continue  # the lock, the count, and files that are still written
            for name in names:
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    facts = path.stat()
                    yield facts.st_mtime_ns, facts.st_size, path

    @contextmanager
    def _locked(self) -> Iterator[_Total]:
        with (self._folder / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file is closed, at a kill too
            count = self._folder / "bytes"
            try:
                total = _Total(int(count.read_text()))
            except (FileNotFoundError, ValueError):
                total = _Total(sum(size for _, size, _ in self._files()))
            before = total.bytes
            yield total
            if total.bytes != before or not count.exists():
                count.write_text(str(total.bytes))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk_failure(error)(
                f"training.cache_directory = {self._folder}: {error.strerror or error}; free space "
                "there, lower training.cache_bytes, name another folder, or leave it out"
            ) from error


class _Total:
    """Bytes of all files of a folder."""

    def __init__(self, count: int) -> None:
        self.bytes = count
