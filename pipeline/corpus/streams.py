"""Opening local files and S3 objects for reading from front to back, or by range."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from pipeline.corpus.compression import HEAD_BYTES
from pipeline.corpus.s3_file import S3_SCHEME, S3File, object_status, object_version
from pipeline.errors import InputError

# To look at a file's beginning takes one request of an object store, which then has a small file.
_PEEK_BYTES = 1 << 20


def is_s3(location: str) -> bool:
    """Say whether a location is an S3 object's URI."""
    return location.startswith(S3_SCHEME)


class RawStream:
    """The stored bytes [start, end) of a file.

    Raises InputError if it is gone, is not `version` (empty: any), or ends before `end`.
    """

    def __init__(self, location: str, start: int, end: int, version: str) -> None:
        self.location = location
        self._position = start
        self._end = end
        self._unread = b""
        try:
            self._file: IO[bytes] | Any = open_seekable(location)
            if start:
                self._file.seek(start)
        except OSError as error:
            raise cannot_read(location, error) from None
        try:
            check_version(location, self._file, end, version)
        except BaseException:
            self._file.close()
            raise

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, b"" at the end only."""
        if self._unread:
            data, self._unread = self._unread[:size], self._unread[size:]
            return data
        wanted = min(size, self._end - self._position)
        if wanted <= 0:
            return b""
        try:
            data = self._file.read(wanted)
        except OSError as error:
            raise cannot_read(self.location, error) from None
        if not data:
            raise cut_short(self.location, self._position, self._end)
        self._position += len(data)
        return bytes(data)

    def peek(self, size: int) -> bytes:
        """Return the next bytes, `size` of them or all there are, without passing over them."""
        while len(self._unread) < size:
            kept, self._unread = self._unread, b""
            data = self.read(max(size - len(kept), _PEEK_BYTES))
            self._unread = kept + data
            if not data:
                break
        return self._unread[:size]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def first_bytes(location: str, size: int, version: str) -> bytes:
    """Return the stored bytes that a file of `size` bytes begins with, 64 at most."""
    stream = RawStream(location, 0, size, version)
    try:
        return stream.peek(HEAD_BYTES)
    finally:
        stream.close()


def open_seekable(location: str) -> Any:
    """Open a local file (unbuffered) or an S3 object.

    Raises OSError as the system does, InputError for an object that the store does not give.
    """
    if is_s3(location):
        return S3File(location)
    return open(location, "rb", buffering=0)


def open_arrow(location: str, end: int, version: str) -> pa.NativeFile:
    """Open a whole file for Arrow's readers; InputError as for a RawStream up to `end`."""
    try:
        file = S3File(location) if is_s3(location) else pa.OSFile(location)
    except OSError as error:
        raise cannot_read(location, error) from None
    try:
        check_version(location, file, end, version)
        return pa.PythonFile(file, mode="r") if is_s3(location) else file
    except BaseException:
        file.close()
        raise


def local_version(status: os.stat_result) -> str:
    """Return what tells a file from one of other bytes without reading it: its time and size."""
    return f"{status.st_mtime_ns}:{status.st_size}"


def check_version(location: str, file: Any, end: int, version: str) -> None:
    """Raise InputError if a file is not the one that was listed: as it was opened, or as it is."""
    try:
        if is_s3(location):
            size, etag = (file.size, file.etag) if file else object_status(location)
            found = object_version(etag)
        else:
            # By name, after it was opened: whether it was replaced before or since, it shows.
            status = Path(location).stat()
            size, found = status.st_size, local_version(status)
    except OSError as error:
        raise cannot_read(location, error) from None
    if size < end:
        raise cut_short(location, size, end)
    if version and found != version:
        raise InputError(
            f"{location}: changed since the job was planned (byte offset 0 to {size}: it is "
            f"{found}, and was {version}); leave it as it is while a job runs, and run the command "
            "again. Copies of it on several machines need the same time of modification (cp -p)"
        )


def cannot_read(location: str, error: Exception) -> InputError:
    """Return the error for a file that the system does not give."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return InputError(
        f"{location}: cannot read it: {reason}; restore it if it was removed or moved since the "
        "job was planned, give this user the right to read it, or take it out of the source"
    )


def cut_short(location: str, reached: int, end: int) -> InputError:
    """Return the error for a file that is shorter than it was when it was listed."""
    return InputError(
        f"{location}: ends at byte {reached}, before byte {end}: it was cut short since the job "
        "was planned; restore it and run the command again"
    )
