"""From a URI to its store."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import StorageError
from pipeline.storage.interface import Storage
from pipeline.storage.local import LocalStorage
from pipeline.storage.s3 import S3Storage


def open_storage(uri: str) -> Storage:
    """Open a local directory (created on the first write) or an s3://bucket/prefix."""
    if uri.startswith("s3://"):
        return S3Storage(uri)
    if "://" in uri:
        raise StorageError(f"{uri}: unknown scheme; use a local path or s3://bucket/prefix")
    return LocalStorage(uri)


def absolute_uri(uri: str) -> str:
    """Return a URI that means the same in every process: workers have other directories."""
    return uri if "://" in uri else str(Path(uri).expanduser().absolute())
