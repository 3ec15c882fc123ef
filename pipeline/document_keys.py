"""A document's key, and the hash of it that orders and partitions the corpus."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.derived_keys import derive_key


def document_key(source: str, path: str, offset: int | str, repetition: int = 0) -> str:
    """Return the text form of a document's identity: source/path#offset.repetition."""
    return f"{source}/{path}#{offset}.{repetition}"


def source_names(keys: pa.StringArray) -> pa.StringArray:
    """Return the name of the source that each document's key begins with."""
    return pc.list_element(pc.split_pattern(keys, "/", max_splits=1), 0)


def repeated_key(key: str, repetition: int) -> str:
    """Return the key of another repetition of a document."""
    return f"{key.rpartition('.')[0]}.{repetition}"


def document_hashes(keys: Iterable[str], seed: int) -> list[bytes]:
    """Return the BLAKE2b-128 of each key, keyed by the seed."""
    secret = derive_key(seed, "partition").to_bytes(8, "little")
    return [hashlib.blake2b(key.encode(), digest_size=16, key=secret).digest() for key in keys]


def are_held_out(keys: Sequence[str], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Return for each key whether its document is kept for evaluation: a draw of its own."""
    secret = derive_key(seed, "held_out").to_bytes(8, "little")
    draws = [hashlib.blake2b(key.encode(), digest_size=8, key=secret).digest() for key in keys]
    # 2**64 is no float64 problem here: the fraction is compared as an integer threshold.
    threshold = int(fraction * (1 << 32)) << 32
    return np.frombuffer(b"".join(draws), ">u8") < np.uint64(threshold)


def hash_words(hashes: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return 128-bit hashes as two big-endian words each, uint64 [N, 2]: in the hashes' order."""
    data = hashes.combine_chunks()
    words = np.frombuffer(data.buffers()[1] or b"", ">u8")[data.offset * 2 :][: 2 * len(data)]
    return words.reshape(-1, 2).astype(np.uint64)
