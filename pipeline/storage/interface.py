"""What every store can do.

Names are '/'-separated and relative to the store's root. `create` is "create if absent"
(a link without replace on disk, `If-None-Match: *` on S3): an object never changes once it
exists. Only small pointers are ever replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pipeline.errors import ConflictError

TEMPORARY_PREFIX = ".tmp-"


def sha256(data: bytes | memoryview) -> str:
    """Return the SHA-256 of `data` in hexadecimal, as every manifest names it."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a writer that was killed left: a temporary file, or an incomplete multipart upload."""

    name: str
    """Of the temporary file, or of the object that was being uploaded."""
    bytes: int
    age_seconds: float
    """Since the last byte of a file; since the start of an upload."""
    upload_id: str = ""
    """Empty for a file."""


class Storage(Protocol):
    """What a stage may do with its store; every failure is a StorageError that names the object.

    It is a LastingStorageError where the store would fail again: what is read is not there, this
    user may not, the bucket does not exist. It is none where the store was busy, full or away.
    """

    uri: str

    def prepare(self) -> None:
        """Raise StorageError now if nothing could be written later; a directory is made."""

    def read(self, name: str) -> bytes:
        """Return the bytes of an object; LastingStorageError if it does not exist."""

    def view(self, name: str) -> memoryview:
        """Return the bytes of an object, mapped where it is a local file: processes share them."""

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

    def leftovers(self, prefix: str) -> Iterator[Leftover]:
        """Yield what killed writers left below a prefix, and what writers at work have begun."""

    def remove_leftover(self, leftover: Leftover) -> None:
        """Remove one; nothing happens if it is gone."""


def conflict(uri: str, their_bytes: int, their_sha256: str, ours: bytes) -> ConflictError:
    """Return the error for an object that exists with other bytes than ours."""
    return ConflictError(
        f"{uri}: exists with {their_bytes} bytes, SHA-256 {their_sha256}; this run made "
        f"{len(ours)} bytes, SHA-256 {sha256(ours)}. Nothing was overwritten: the object was "
        "damaged or made by another build; check it with `python -m pipeline verify`, "
        "remove its generation and run the command again"
    )
