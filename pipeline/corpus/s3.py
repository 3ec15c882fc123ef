"""Listing of S3 objects: an object, a prefix that stands for a folder, or a glob."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pipeline.corpus.left_out import is_kept
from pipeline.corpus.path_pattern import matches
from pipeline.corpus.report import ReadReport
from pipeline.corpus.s3_file import S3_SCHEME, bucket_and_key, object_version
from pipeline.errors import InputError
from pipeline.source_config import SourceConfig
from pipeline.storage.s3_client import connect
from pipeline.storage.s3_errors import explained, is_absent


@dataclass(frozen=True, slots=True)
class Located:
    """A file that was found: where, and its '/'-separated path below the source's root."""

    location: str
    path: str
    bytes: int = 0
    checksum: str = ""
    """Empty if only its bytes tell."""


def list_objects(source: SourceConfig, report: ReadReport) -> list[Located]:
    """Return the objects of an s3:// path; hidden and temporary ones are counted and left out.

    Raises InputError if nothing matches or the store refuses.
    """
    bucket, key = bucket_and_key(source.path)
    key = key.strip("/")
    with _explained(source.path):
        client = connect().client
        parts = key.split("/") if key else []
        first = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
        if first == len(parts) and key:
            found = _head(client, bucket, key, parts[-1])
            if found:
                return [found]
        root = "".join(f"{part}/" for part in parts[:first])
        located = []
        for one in _below(client, bucket, root):
            # A prefix takes all below it.
            if parts[first:] and not matches(one.path.split("/"), parts[first:]):
                continue
            if is_kept(one.path.split("/"), one.location, parts[first:], report):
                located.append(one)
    if not located:
        raise InputError(
            f"documents.sources[{source.name}].path = {source.path}: no such object, and none "
            "below it or that matches it as a glob; correct the path"
        )
    return located


def locate_object(uri: str, place: str) -> Located:
    """Return the object of a list's line; InputError, which names `place`, if there is none."""
    bucket, key = bucket_and_key(uri)
    with _explained(uri):
        found = _head(connect().client, bucket, key, f"{bucket}/{key}")
    if found is None:
        raise InputError(f"{place}: {uri}: no such object; correct the list")
    return found


def _explained(uri: str) -> AbstractContextManager[None]:
    return explained(uri, "list", InputError)


def _head(client: Any, bucket: str, key: str, path: str) -> Located | None:
    from botocore.exceptions import ClientError

    try:
        answer = client.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if is_absent(error):
            return None
        raise
    # Some stores answer for a folder as for an object: listing it is what is meant then.
    if answer.get("ContentType") == "httpd/unix-directory":
        return None
    location = f"{S3_SCHEME}{bucket}/{key}"
    return Located(location, path, answer["ContentLength"], object_version(answer["ETag"]))


def _below(client: Any, bucket: str, root: str) -> Iterator[Located]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=root)
    for page in pages:
        for item in page.get("Contents", ()):
            key = item["Key"]
            if key.endswith("/"):  # a folder's marker
                continue
            location = f"{S3_SCHEME}{bucket}/{key}"
            yield Located(location, key[len(root) :], item["Size"], object_version(item["ETag"]))
