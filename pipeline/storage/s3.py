"""A prefix of a bucket as a store: conditional writes, reads that survive broken bodies."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from pipeline.errors import LastingStorageError, StorageError
from pipeline.storage import s3_uploads
from pipeline.storage.interface import Leftover, conflict
from pipeline.storage.s3_client import connect
from pipeline.storage.s3_errors import explained, is_absent, lost_race
from pipeline.storage.s3_reads import read_object

WRITE_CHECK = "write_check"
"""Name of the object by which `prepare` sees whether the store takes writes, and once only."""
_WRITE_CHECK_BYTES = b"clozeline looked here whether it may write, and cannot overwrite.\n"
_COMPARED_BYTES = 16 << 20
_CREATE_ATTEMPTS = 3


class S3Storage:
    """A prefix of a bucket; credentials, region and endpoint come from the usual AWS settings."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self.bucket, _, self.prefix = self.uri.removeprefix("s3://").partition("/")
        if not self.bucket:
            raise LastingStorageError(f"{uri}: no bucket; write s3://bucket/prefix")
        with explained(self.uri, "connect"):
            self._connection = connect()
        self._client = self._connection.client

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def _where(self, name: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self._key(name)}

    def _explained(self, action: str, name: str) -> AbstractContextManager[None]:
        return explained(f"{self.uri}/{name}", action)

    def prepare(self) -> None:
        from botocore.exceptions import ClientError

        with self._explained("write", WRITE_CHECK):
            for _ in range(2):  # a second write must be refused, in this run or another
                try:
                    self._put_if_absent(WRITE_CHECK, _WRITE_CHECK_BYTES)
                except ClientError as error:
                    if lost_race(error):
                        return
                    raise
        raise LastingStorageError(
            f"{self.uri}/{WRITE_CHECK}: written twice: the store does not heed conditional writes "
            "(If-None-Match), so two workers could overwrite each other; use a store that does"
        )

    def read(self, name: str) -> bytes:
        with self._explained("read", name):
            return read_object(self._connection, self.bucket, self._key(name))[0]

    def view(self, name: str) -> memoryview:
        return memoryview(self.read(name))

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        if not length:
            return b""
        with self._explained("read", name):
            key = self._key(name)
            return read_object(self._connection, self.bucket, key, offset, offset + length)[0]

    def size(self, name: str) -> int | None:
        with self._explained("read", name):
            return self._size(name)

    def _size(self, name: str) -> int | None:
        from botocore.exceptions import ClientError

        try:
            return int(self._client.head_object(**self._where(name))["ContentLength"])
        except ClientError as error:
            if is_absent(error):
                return None
            raise

    def create(self, name: str, data: bytes) -> None:
        from botocore.exceptions import ClientError

        with self._explained("write", name):
            in_parts = len(data) >= s3_uploads.MULTIPART_BYTES
            if in_parts and self._holds(name, data):  # it is refused only when all was sent
                return
            for _ in range(_CREATE_ATTEMPTS):
                try:
                    if in_parts:
                        key = self._key(name)
                        s3_uploads.upload_if_absent(self._client, self.bucket, key, data)
                    else:
                        self._put_if_absent(name, data)
                    return
                except ClientError as error:
                    if not lost_race(error):
                        raise
                if self._holds(name, data):
                    return
                # S3 may refuse because of another's write that then came to nothing.
        raise StorageError(
            f"{self.uri}/{name}: cannot write: refused {_CREATE_ATTEMPTS} times because it exists, "
            "and it does not (request id none); see who removes it, then run the command again"
        )

    def _put_if_absent(self, name: str, data: bytes) -> None:
        self._client.put_object(**self._where(name), Body=data, IfNoneMatch="*")

    def _holds(self, name: str, data: bytes) -> bool:
        """Say whether the object is there; ConflictError if it holds other bytes than `data`."""
        size = self._size(name)
        if size is None:
            return False
        digest = hashlib.sha256()
        same = size == len(data)
        # Piece by piece: a large object need not fit memory twice.
        for start in range(0, size, _COMPARED_BYTES):
            end = min(start + _COMPARED_BYTES, size)
            part, _ = read_object(self._connection, self.bucket, self._key(name), start, end)
            digest.update(part)
            same = same and part == memoryview(data)[start:end]
        if not same:
            raise conflict(f"{self.uri}/{name}", size, digest.hexdigest(), data)
        return True

    def replace(self, name: str, data: bytes) -> None:
        with self._explained("write", name):
            self._client.put_object(**self._where(name), Body=data)

    def replace_if(self, name: str, expected: bytes | None, data: bytes) -> bool:
        from botocore.exceptions import ClientError

        with self._explained("write", name):
            found, condition = self._with_condition(name)
            if found != expected:
                return False
            try:
                self._client.put_object(**self._where(name), Body=data, **condition)
                return True
            except ClientError as error:
                if not lost_race(error):
                    raise
                return False

    def _with_condition(self, name: str) -> tuple[bytes | None, dict[str, Any]]:
        """Return an object's bytes and the condition that it is still the same at a write."""
        from botocore.exceptions import ClientError

        try:
            data, etag = read_object(self._connection, self.bucket, self._key(name))
        except ClientError as error:
            if not is_absent(error):
                raise
            return None, {"IfNoneMatch": "*"}
        return data, {"IfMatch": etag}

    def delete(self, name: str) -> None:
        with self._explained("delete", name):
            self._client.delete_object(**self._where(name))

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        start = len(self._key(""))
        with self._explained("list", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=self._key(prefix)
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    yield item["Key"][start:], item["Size"]

    def leftovers(self, prefix: str) -> Iterator[Leftover]:
        start = len(self._key(""))
        with self._explained("list uploads", prefix):
            for one in s3_uploads.incomplete_uploads(self._client, self.bucket, self._key(prefix)):
                yield dataclasses.replace(one, name=one.name[start:])

    def remove_leftover(self, leftover: Leftover) -> None:
        from botocore.exceptions import ClientError

        with self._explained("abort the upload", leftover.name):
            try:
                self._client.abort_multipart_upload(
                    **self._where(leftover.name), UploadId=leftover.upload_id
                )
            except ClientError as error:
                if not lost_race(error):  # NoSuchUpload: it is gone
                    raise
