"""A directory or an s3:// prefix behind one small interface with atomic, conditional writes."""

from pipeline.storage.checked import read_checked
from pipeline.storage.interface import TEMPORARY_PREFIX, Leftover, Storage, sha256
from pipeline.storage.local import LocalStorage, disk_failure
from pipeline.storage.opening import absolute_uri, arrow_filesystem, open_storage
from pipeline.storage.retries import storage_retries

__all__ = [
    "TEMPORARY_PREFIX",
    "Leftover",
    "LocalStorage",
    "Storage",
    "absolute_uri",
    "arrow_filesystem",
    "disk_failure",
    "open_storage",
    "read_checked",
    "sha256",
    "storage_retries",
]
