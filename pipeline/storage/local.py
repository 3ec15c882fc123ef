"""A directory as a store: temporary files, links that do not replace, locks."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from pipeline.errors import LastingStorageError, StorageError
from pipeline.storage.interface import TEMPORARY_PREFIX, Leftover, conflict, sha256

T = TypeVar("T")

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FOLDER_TRIES = 100
_IN_THE_WAY = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR)


def disk_failure(error: OSError) -> type[StorageError]:
    """Return what a disk's refusal is raised as: lasting where the next try meets it again."""
    return LastingStorageError if error.errno in (*_DENIED, *_IN_THE_WAY) else StorageError


def _made_in(folder: Path, make: Callable[[], T]) -> T:
    """Make a folder and, with `make`, something in it."""
    for _ in range(_FOLDER_TRIES):
        # Others may remove the folder as empty before there is something in it.
        with suppress(FileNotFoundError):
            folder.mkdir(parents=True, exist_ok=True)
            return make()
    return make()


def _unless_absent(error: OSError) -> None:
    # os.walk passes over folders that it cannot list unless told to fail.
    if not isinstance(error, FileNotFoundError):
        raise error


class LocalStorage:
    """A directory of the local (or a shared POSIX) file system."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/") or "/"
        # Absolute, because a Ray worker has another working directory than the driver.
        self.root = Path(self.uri).expanduser().absolute()

    def _path(self, name: str) -> Path:
        return self.root / name

    @contextmanager
    def _explained(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # What is absent at a write is a folder that another process removed as empty.
            absent = error.errno == errno.ENOENT and action == "read"
            kind = LastingStorageError if absent else disk_failure(error)
            raise kind(self._remedy(action, name, error)) from error

    def _remedy(self, action: str, name: str, error: OSError) -> str:
        what = f"{self._path(name)}: cannot {action}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return f"{what}; free space on that disk or move `root`, then run the command again"
        if error.errno in _DENIED:
            return f"{what}; give this user the right to {action} there or change `root`"
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            return f"{what}; a file is in the way of a directory, change `root` or move the file"
        if error.errno == errno.ENOENT:
            return (
                f"{what}; it was removed, or made by a stage that is not finished: check with "
                "`python -m pipeline verify`, and run its stage again"
            )
        return what

    def prepare(self) -> None:
        with self._explained("write", ""):
            self.root.mkdir(parents=True, exist_ok=True)
            if not os.access(self.root, os.W_OK | os.X_OK):
                read_only = os.statvfs(self.root).f_flag & os.ST_RDONLY
                code = errno.EROFS if read_only else errno.EACCES
                raise PermissionError(code, os.strerror(code))

    def read(self, name: str) -> bytes:
        with self._explained("read", name):
            return self._path(name).read_bytes()

    def view(self, name: str) -> memoryview:
        with self._explained("read", name), self._path(name).open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")  # the system maps no empty file
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        with self._explained("read", name), self._path(name).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def size(self, name: str) -> int | None:
        with self._explained("read", name):
            try:
                return self._path(name).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def create(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with self._explained("write", name):
            with self._temporary(path, data) as temporary:
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    theirs = path.read_bytes()
                    if theirs != data:
                        raise conflict(str(path), len(theirs), sha256(theirs), data) from None
            self._sync_directory(path.parent)

    def replace(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with self._explained("write", name):
            self._replace(path, data)

    def replace_if(self, name: str, expected: bytes | None, data: bytes) -> bool:
        path = self._path(name)
        with self._explained("write", name):
            # The lock is beside the pointer, since replacing it would put the lock aside; the
            # system releases it when the file is closed, at a kill too.
            beside = path.with_name(f"{path.name}.lock")
            with _made_in(path.parent, lambda: beside.open("ab")) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                found = path.read_bytes() if path.exists() else None
                if found != expected:
                    return False
                self._replace(path, data)
                return True

    def _replace(self, path: Path, data: bytes) -> None:
        with self._temporary(path, data) as temporary:
            os.replace(temporary, path)
        self._sync_directory(path.parent)

    @contextmanager
    def _temporary(self, path: Path, data: bytes) -> Iterator[str]:
        """Hold `data`, on the disk, in a file beside `path` that is gone after the block."""
        handle, temporary = _made_in(
            path.parent, lambda: tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
        )
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
            yield temporary
        finally:
            with suppress(FileNotFoundError):  # it took the place of `path`
                os.unlink(temporary)

    @staticmethod
    def _sync_directory(path: Path) -> None:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._explained("delete", name):
            path.unlink(missing_ok=True)
            for folder in path.parents:
                if folder == self.root:
                    return
                try:
                    folder.rmdir()  # as on an object store, no empty folder stays
                except OSError:
                    return

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        for path, status in self._files(prefix, "list"):
            if not path.name.startswith(TEMPORARY_PREFIX):
                yield path.relative_to(self.root).as_posix(), status.st_size

    def leftovers(self, prefix: str) -> Iterator[Leftover]:
        for path, status in self._files(prefix, "list"):
            if path.name.startswith(TEMPORARY_PREFIX):
                name = path.relative_to(self.root).as_posix()
                yield Leftover(name, status.st_size, time.time() - status.st_mtime)

    def remove_leftover(self, leftover: Leftover) -> None:
        self.delete(leftover.name)

    def _files(self, prefix: str, action: str) -> Iterator[tuple[Path, os.stat_result]]:
        with self._explained(action, prefix):
            found = []
            for folder, _, files in os.walk(self._path(prefix), onerror=_unless_absent):
                for file in files:
                    path = Path(folder, file)
                    # Another writer's temporary file may be gone by now.
                    with suppress(FileNotFoundError):
                        found.append((path, path.stat()))
        yield from sorted(found, key=lambda one: one[0].as_posix())
