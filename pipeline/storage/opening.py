"""From a URI to its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.errors import LastingStorageError
from pipeline.storage.interface import Storage
from pipeline.storage.local import LocalStorage
from pipeline.storage.s3 import S3Storage
from pipeline.storage.s3_client import connect
from pipeline.storage.s3_errors import explained
from pipeline.storage.s3_filesystem import s3_filesystem


def open_storage(uri: str) -> Storage:
    """Open a local directory (created on the first write) or an s3://bucket/prefix."""
    if uri.startswith("s3://"):
        return S3Storage(uri)
    if "://" in uri:
        raise LastingStorageError(f"{uri}: unknown scheme; use a local path or s3://bucket/prefix")
    return LocalStorage(uri)


def absolute_uri(uri: str) -> str:
    """Return a URI that means the same in every process: workers have other directories."""
    return uri if "://" in uri else str(Path(uri).expanduser().absolute())


def arrow_filesystem(uri: str) -> tuple[Any, str]:
    """Return what a library that keeps files of its own needs to write below a URI.

    That is a pyarrow file system with the settings of our own client (None for a local path), and
    the path in it. Raises StorageError where the settings give no client or no credentials.
    """
    if not uri.startswith("s3://"):
        return None, uri
    with explained(uri, "connect"):
        return s3_filesystem(connect()), uri.removeprefix("s3://")
