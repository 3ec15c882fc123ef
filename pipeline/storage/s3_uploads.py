"""Multipart uploads that create an object only if it is absent.

boto3's own transfers take no condition, so the parts are sent here: If-None-Match goes with the
completion, before which no reader sees anything of the object.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from pipeline.storage.interface import Leftover

MULTIPART_BYTES = 64 << 20
"""From here on an object goes in parts: a fault then costs a part, not all of it."""
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 4
"""So an upload takes at most four parts of memory beside the object."""
_MOST_PARTS = 10_000  # of S3


def upload_if_absent(client: Any, bucket: str, key: str, data: bytes) -> None:
    """Create an object in parts; a failed upload is aborted, and its parts with it.

    Raises botocore's errors, those of a lost race too.
    """
    where = {"Bucket": bucket, "Key": key}
    where["UploadId"] = client.create_multipart_upload(**where)["UploadId"]
    part_bytes = max(PART_BYTES, -(-len(data) // _MOST_PARTS))

    def send(number: int) -> dict[str, Any]:
        part = data[number * part_bytes : (number + 1) * part_bytes]
        answer = client.upload_part(**where, PartNumber=number + 1, Body=part)
        return {"PartNumber": number + 1, "ETag": answer["ETag"]}

    pool = ThreadPoolExecutor(PARTS_AT_ONCE, "upload-part")
    try:
        parts = list(pool.map(send, range(-(-len(data) // part_bytes))))
        client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts}, IfNoneMatch="*")
    except BaseException:
        pool.shutdown(cancel_futures=True)  # no part may come after the abort
        # The failure itself is what must be told; what cannot be aborted now is for `gc`.
        with suppress(Exception):
            client.abort_multipart_upload(**where)
        raise
    finally:
        pool.shutdown()


def incomplete_uploads(client: Any, bucket: str, prefix: str) -> Iterator[Leftover]:
    """Yield the uploads below a prefix that were begun and not completed, by their keys."""
    pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix)
    for page in pages:
        for upload in page.get("Uploads", ()):
            where = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
            age = datetime.now(UTC) - upload["Initiated"]
            size = _uploaded_bytes(client, where)
            yield Leftover(upload["Key"], size, age.total_seconds(), upload["UploadId"])


def _uploaded_bytes(client: Any, where: dict[str, str]) -> int:
    pages = client.get_paginator("list_parts").paginate(**where)
    return sum(part["Size"] for page in pages for part in page.get("Parts", ()))
