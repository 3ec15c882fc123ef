"""Reading objects: a body that breaks is read on from the byte where it broke."""

from __future__ import annotations

import io
from typing import Any

from pipeline.storage.retries import count_retry, pause
from pipeline.storage.s3_client import Connection
from pipeline.storage.s3_errors import error_code

_CHUNK_BYTES = 1 << 20


def read_object(
    connection: Connection,
    bucket: str,
    key: str,
    start: int = 0,
    end: int | None = None,
    etag: str = "",
) -> tuple[bytes, str]:
    """Return the bytes [start, end) of an object, fewer where it ends before, and its ETag.

    With `etag` those of that object only. Raises botocore's and urllib3's errors.
    """
    from botocore.exceptions import BotoCoreError, ClientError, FlexibleChecksumError
    from urllib3.exceptions import HTTPError

    buffer = io.BytesIO()
    found, last, failures = etag, end, 0
    while True:
        position = start + buffer.tell()
        options: dict[str, Any] = {"IfMatch": found} if found else {}
        if position or last is not None:
            options["Range"] = f"bytes={position}-{'' if last is None else last - 1}"
        try:
            answer = connection.client.get_object(Bucket=bucket, Key=key, **options)
        except ClientError as error:
            if error_code(error) == "InvalidRange" and position == start:
                return b"", found
            if error_code(error) == "PreconditionFailed" and not etag and failures:
                # A pointer that was replaced between two parts of it.
                buffer, found, last = io.BytesIO(), "", end
                failures += 1
                if failures < connection.attempts:
                    continue
            raise
        found, last = answer["ETag"], position + int(answer["ContentLength"])
        body = answer["Body"]
        try:
            # boto3 repeats requests, not bodies that are cut half-way.
            while chunk := body.read(_CHUNK_BYTES):
                buffer.write(chunk)
        except (BotoCoreError, HTTPError) as error:
            body.close()
            if isinstance(error, FlexibleChecksumError):  # all came, and not as it was sent
                buffer.seek(position - start)
                buffer.truncate()
            count_retry()
            failures = 1 if start + buffer.tell() > position else failures + 1
            if failures >= connection.attempts:
                raise
            pause(failures)
        if start + buffer.tell() >= last:
            return buffer.getvalue(), found
