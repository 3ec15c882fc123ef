"""One S3 object as a file that is readable at any place, through faults of the network."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any

from pipeline.errors import InputError
from pipeline.storage.retries import count_retry
from pipeline.storage.s3_client import Connection, connect
from pipeline.storage.s3_errors import explained
from pipeline.storage.s3_filesystem import s3_filesystem
from pipeline.storage.s3_reads import read_object

S3_SCHEME = "s3://"


class S3File:
    """An S3 object, open for reading.

    pyarrow reads it and repeats what fails. What it gives up on is asked for again by boto3, from
    the same byte on and of the same object only; that error has a request id. Raises InputError.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self.closed = False
        self._bucket, self._key = bucket_and_key(location)
        self._position = 0
        self._file: Any = None
        with self._explained():
            self._connection = connect()
            filesystem = s3_filesystem(self._connection)
            try:
                self._file = filesystem.open_input_file(f"{self._bucket}/{self._key}")
                self.size = int(self._file.size())
                self.etag = self._file.metadata()["ETag"].decode()
            except OSError:
                count_retry()
                self.size, self.etag = _head(self._connection, self._bucket, self._key)

    def _explained(self) -> AbstractContextManager[None]:
        return _explained(self.location)

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, at most `size`, all that are left if it is negative."""
        left = max(0, self.size - self._position)
        length = left if size < 0 else min(size, left)
        data = self._read_at(length, self._position) if length else b""
        self._position += len(data)
        return data

    def _read_at(self, length: int, start: int) -> bytes:
        if self._file is not None:
            try:
                return bytes(self._file.read_at(length, start))
            except OSError:
                count_retry()
        with self._explained():
            end = start + length
            data, _ = read_object(
                self._connection, self._bucket, self._key, start, end, etag=self.etag
            )
            return data

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a place; returns it."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._position

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def flush(self) -> None:
        """Do nothing: there is nothing to write."""

    def close(self) -> None:
        """Give back the connection."""
        self.closed = True
        if self._file is not None:
            self._file.close()


def bucket_and_key(uri: str) -> tuple[str, str]:
    """Split an s3:// URI; InputError if it names no bucket."""
    bucket, _, key = uri.removeprefix(S3_SCHEME).partition("/")
    if not bucket:
        raise InputError(f"{uri}: no bucket; write s3://bucket/key")
    return bucket, key


def object_status(location: str) -> tuple[int, str]:
    """Return an object's size and ETag as they are now; InputError if it is gone."""
    bucket, key = bucket_and_key(location)
    with _explained(location):
        return _head(connect(), bucket, key)


def _explained(location: str) -> AbstractContextManager[None]:
    absent = (
        "restore it if it was removed or moved since the job was planned, or take it out of the "
        "source"
    )
    return explained(location, "read it", InputError, absent)


def _head(connection: Connection, bucket: str, key: str) -> tuple[int, str]:
    answer = connection.client.head_object(Bucket=bucket, Key=key)
    return int(answer["ContentLength"]), str(answer["ETag"])


def object_version(etag: str) -> str:
    """Return what tells an S3 object from one of other bytes: "etag:" and its ETag."""
    return "etag:" + etag.strip('"')
