"""A partition of documents, a block at a time: memory does not grow with the corpus.

Partitions grow with the corpus, to gigabytes of text at terabytes. They are sorted by document
hash, so a block, a run of documents of about 64 MB of text, is a uniform sample of the corpus as
well: a random other document drawn inside it is random in the corpus.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipeline.commit import Generation, check_digest
from pipeline.contract import DOCUMENT_SCHEMA, ObjectEntry

_BLOCK_TEXT_BYTES = 64_000_000
# Larger objects are read twice by ranges, to be hashed and then to be used; smaller ones once.
_WHOLE_BYTES = 256_000_000
_RANGE_BYTES = 16_000_000


def document_blocks(
    documents: Generation, entry: ObjectEntry, text_bytes: int
) -> Iterator[pa.Table]:
    """Yield the documents of a partition (DOCUMENT_SCHEMA) in blocks, at least one.

    Where blocks end depends on the file and on `text_bytes`, the text it holds, alone. Raises
    CorruptError before the first block unless size and checksum are the manifest's.
    """
    if entry.bytes <= _WHOLE_BYTES:
        file = pa.ipc.open_file(pa.py_buffer(documents.view(entry)))
    else:
        ranges = _Ranges(documents, entry)
        ranges.verify()
        file = pa.ipc.open_file(pa.PythonFile(ranges, mode="r"))
    blocks = max(1, round(text_bytes / _BLOCK_TEXT_BYTES))
    for numbers in np.array_split(np.arange(file.num_record_batches), blocks):
        batches = [file.get_batch(int(number)) for number in numbers]
        if batches or blocks == 1:
            yield pa.Table.from_batches(batches, DOCUMENT_SCHEMA)


class _Ranges(io.RawIOBase):
    """An object of a store as a file that is read by byte ranges."""

    def __init__(self, generation: Generation, entry: ObjectEntry) -> None:
        self._storage = generation.storage
        self._name = generation.name(entry.name)
        self._entry = entry
        self._at = 0

    def verify(self) -> None:
        """Read all of it once; CorruptError unless it is what the manifest says."""
        digest = hashlib.sha256()
        size = 0
        while size <= self._entry.bytes and (
            data := self._storage.read_range(self._name, size, _RANGE_BYTES)
        ):
            digest.update(data)
            size += len(data)
        check_digest(size, digest.hexdigest(), self._entry, f"{self._storage.uri}/{self._name}")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._entry.bytes}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        wanted = self._entry.bytes - self._at if size < 0 else size
        data = self._storage.read_range(self._name, self._at, wanted)
        self._at += len(data)
        return data
