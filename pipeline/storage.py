"""A directory or an s3:// prefix behind one small interface with atomic, conditional writes.

Names are '/'-separated and relative to the store's root. `create` is "create if absent"
(a link without replace on disk, `If-None-Match: *` on S3): an object never changes once it
exists. Only small pointers are ever replaced.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from pipeline.errors import ConflictError, StorageError

TEMPORARY_PREFIX = ".tmp-"


def sha256(data: bytes | memoryview) -> str:
    """Return the SHA-256 of `data` in hexadecimal, as every manifest names it."""
    return hashlib.sha256(data).hexdigest()


class Storage(Protocol):
    """What a stage may do with its store; every failure is a StorageError that names the object."""

    uri: str

    def prepare(self) -> None:
        """Raise StorageError now if nothing could be written later; a directory is made."""

    def read(self, name: str) -> bytes:
        """Return the bytes of an object; StorageError if it does not exist."""

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`; fewer where the object ends before."""

    def size(self, name: str) -> int | None:
        """Return the size in bytes, None if the object does not exist."""

    def create(self, name: str, data: bytes) -> None:
        """Write an object if absent; ConflictError if it exists with other bytes."""

    def replace(self, name: str, data: bytes) -> None:
        """Write a pointer or report atomically over what was there."""

    def replace_if(self, name: str, expected: bytes | None, data: bytes) -> bool:
        """Write a pointer only if it still holds `expected` (None: is absent); say whether it did.

        Every writer of that pointer has to use it. Look again after a False: on S3 it may come
        from a write of ours whose answer was lost.
        """

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens if it does not exist."""

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield (name, bytes) of every object below a prefix, in order of name."""


def open_storage(uri: str) -> Storage:
    """Open a local directory (created on the first write) or an s3://bucket/prefix."""
    if uri.startswith("s3://"):
        settings = tuple(sorted(one for one in os.environ.items() if one[0].startswith("AWS_")))
        return _s3_storage(uri, settings)
    if "://" in uri:
        raise StorageError(f"{uri}: unknown scheme; use a local path or s3://bucket/prefix")
    return LocalStorage(uri)


@functools.lru_cache(maxsize=16)
def _s3_storage(uri: str, settings: tuple[tuple[str, str], ...]) -> Storage:
    """Keep a store while its settings stay: making a client takes a tenth of a second."""
    return S3Storage(uri)


def absolute_uri(uri: str) -> str:
    """Return a URI that means the same in every process: workers have other directories."""
    return uri if "://" in uri else str(Path(uri).expanduser().absolute())


def refuse_other_bytes(uri: str, theirs: bytes, ours: bytes) -> None:
    """Raise ConflictError unless the object that exists holds exactly our bytes."""
    if theirs != ours:
        raise ConflictError(
            f"{uri}: exists with {len(theirs)} bytes, SHA-256 {sha256(theirs)}; this run made "
            f"{len(ours)} bytes, SHA-256 {sha256(ours)}. Nothing was overwritten: the object was "
            "damaged or made by another build; check it with `python -m pipeline verify`, "
            "remove its generation and run the command again"
        )


def _is_absent(error: Any) -> bool:
    return error.response.get("Error", {}).get("Code") in ("404", "NoSuchKey", "NotFound")


def _lost_race(error: Any) -> bool:
    """Whether S3 refused a conditional write because of what another wrote."""
    code = error.response.get("Error", {}).get("Code")
    return code in ("PreconditionFailed", "ConditionalRequestConflict", "412")


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
            raise StorageError(self._remedy(action, name, error)) from error

    def _remedy(self, action: str, name: str, error: OSError) -> str:
        what = f"{self._path(name)}: cannot {action}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return f"{what}; free space on that disk or move `root`, then run the command again"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
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
                    refuse_other_bytes(str(path), path.read_bytes(), data)
            self._sync_directory(path.parent)

    def replace(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with self._explained("write", name):
            self._replace(path, data)

    def replace_if(self, name: str, expected: bytes | None, data: bytes) -> bool:
        path = self._path(name)
        with self._explained("write", name):
            path.parent.mkdir(parents=True, exist_ok=True)
            # The lock is beside the pointer, since replacing it would put the lock aside; the
            # system releases it when the file is closed, at a kill too.
            with path.with_name(f"{path.name}.lock").open("ab") as lock:
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
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
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
        with self._explained("list", prefix):
            found = []
            for folder, _, files in os.walk(self._path(prefix), onerror=_unless_absent):
                for file in files:
                    path = Path(folder, file)
                    # Another writer's temporary file may be gone by now.
                    with suppress(FileNotFoundError):
                        found.append((path.relative_to(self.root).as_posix(), path.stat().st_size))
        yield from sorted(found)


class S3Storage:
    """A prefix of a bucket; credentials, region and endpoint come from the usual AWS settings."""

    def __init__(self, uri: str) -> None:
        import boto3  # half a second that local runs need not pay
        from botocore.config import Config

        self.uri = uri.rstrip("/")
        self.bucket, _, self.prefix = self.uri.removeprefix("s3://").partition("/")
        if not self.bucket:
            raise StorageError(f"{uri}: no bucket; write s3://bucket/prefix")
        retries: Any = {"max_attempts": 8, "mode": "adaptive"}
        # A session of its own: the shared one keeps the first credentials it saw, and making
        # clients of it is not safe in threads.
        self._client = boto3.session.Session().client("s3", config=Config(retries=retries))

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    @contextmanager
    def _explained(self, action: str, name: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            request = error.response.get("ResponseMetadata", {}).get("RequestId", "none")
            raise StorageError(
                f"{self.uri}/{name}: cannot {action}: {code or error} (request id {request}); "
                "check the bucket, the credentials' rights and the endpoint"
            ) from error
        except BotoCoreError as error:
            raise StorageError(f"{self.uri}/{name}: cannot {action}: {error}") from error

    def prepare(self) -> None:
        with self._explained("use", ""):
            self._client.head_bucket(Bucket=self.bucket)

    def read(self, name: str) -> bytes:
        return self._get(name, None)

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        return self._get(name, f"bytes={offset}-{offset + length - 1}") if length else b""

    def _get(self, name: str, span: str | None) -> bytes:
        from botocore.exceptions import IncompleteReadError, ReadTimeoutError

        extra = {} if span is None else {"Range": span}
        with self._explained("read", name):
            # boto3 retries requests, not bodies that are cut half-way (measured), so we do.
            for last in (False, False, False, True):
                try:
                    answer = self._client.get_object(
                        Bucket=self.bucket, Key=self._key(name), **extra
                    )
                    return bytes(answer["Body"].read())
                except (IncompleteReadError, ReadTimeoutError):
                    if last:
                        raise
        raise AssertionError("unreachable")

    def size(self, name: str) -> int | None:
        from botocore.exceptions import ClientError

        with self._explained("read", name):
            try:
                answer = self._client.head_object(Bucket=self.bucket, Key=self._key(name))
                return int(answer["ContentLength"])
            except ClientError as error:
                if _is_absent(error):
                    return None
                raise

    def create(self, name: str, data: bytes) -> None:
        from botocore.exceptions import ClientError

        with self._explained("write", name):
            try:
                self._client.put_object(
                    Bucket=self.bucket, Key=self._key(name), Body=data, IfNoneMatch="*"
                )
            except ClientError as error:
                if not _lost_race(error):
                    raise
                refuse_other_bytes(f"{self.uri}/{name}", self.read(name), data)

    def replace(self, name: str, data: bytes) -> None:
        with self._explained("write", name):
            self._client.put_object(Bucket=self.bucket, Key=self._key(name), Body=data)

    def replace_if(self, name: str, expected: bytes | None, data: bytes) -> bool:
        from botocore.exceptions import ClientError

        where = {"Bucket": self.bucket, "Key": self._key(name)}
        with self._explained("write", name):
            found, condition = self._with_tag(where)
            if found != expected:
                return False
            try:
                self._client.put_object(**where, Body=data, **condition)
                return True
            except ClientError as error:
                if not _lost_race(error):
                    raise
                return False

    def _with_tag(self, where: dict[str, str]) -> tuple[bytes | None, dict[str, str]]:
        """Return an object's bytes and the condition that it is still the same at a write."""
        from botocore.exceptions import ClientError

        try:
            answer = self._client.get_object(**where)
        except ClientError as error:
            if not _is_absent(error):
                raise
            return None, {"IfNoneMatch": "*"}
        return bytes(answer["Body"].read()), {"IfMatch": answer["ETag"]}

    def delete(self, name: str) -> None:
        with self._explained("delete", name):
            self._client.delete_object(Bucket=self.bucket, Key=self._key(name))

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        start = len(self._key(""))
        with self._explained("list", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=self._key(prefix)
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    yield item["Key"][start:], item["Size"]
