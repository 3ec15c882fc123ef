"""What stages leave for each other: Arrow schemas, manifests, fingerprints.

A manifest is JSON, versioned, and holds no time, host, path or URI: two runs of the same
config over the same input write the same bytes. Times and hosts go into run_report.json.
"""

from __future__ import annotations

import builtins
import functools
import json
import socket
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pyarrow as pa

from pipeline.errors import ClusterError
from pipeline.storage import sha256

MANIFEST_VERSION = 3

# Rises when a stage's code writes other bytes for the same input and config.
STAGE_VERSIONS = {"documents": 2, "vocabulary": 3, "instances": 4, "training": 4, "export": 2}

SPLITS = ("train", "held_out")

# The log of a training, a record a line. It is no object of the manifest: it grows.
METRICS_JSONL = "metrics.jsonl"

DOCUMENT_SCHEMA = pa.schema(
    [
        # BLAKE2b-128 of (seed, document key): the order in a partition.
        pa.field("document_hash", pa.binary(16), nullable=False),
        pa.field("document_key", pa.large_string(), nullable=False),
        # Large offsets: a single document may pass 2 GB of text.
        pa.field("sentences", pa.large_list(pa.large_string()), nullable=False),
    ]
)

Objective = Literal["nsp", "sop", "full_sentences", "doc_sentences", "sentence"]
Compression = Literal["zstd", "lz4", "none"]

# The label column of the objectives that have pairs, and what its 0 and 1 are counted as.
PAIR_LABELS: Mapping[str, str] = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}
LABEL_COUNTS: Mapping[str, tuple[str, str]] = {
    "nsp": ("is_next", "random_next"),
    "sop": ("in_order", "swapped"),
}
LABEL_MEANINGS: Mapping[str, tuple[str, str]] = {
    "nsp": ("B follows A", "B is random"),
    "sop": ("B follows A", "A follows B"),
}
WORD_STARTS = "word_starts"
SOURCE = "source"
MASKED_POSITIONS = "masked_lm_positions"
MASKED_IDS = "masked_lm_ids"


def token_type(vocab_size: int) -> pa.DataType:
    """Return the Arrow type of token ids: uint16 while every id fits, else uint32."""
    return pa.uint16() if vocab_size <= 1 << 16 else pa.uint32()


def shard_schema(
    *,
    vocab_size: int,
    objective: Objective,
    word_starts: bool,
    static_masking: bool,
    sources: int = 1,
) -> pa.Schema:
    """Return the schema of an instance shard (design: the shard contract)."""
    ids = _list_of(token_type(vocab_size))
    fields = [
        pa.field("input_ids", ids, nullable=False),
        pa.field("first_segment_length", pa.uint16(), nullable=False),
    ]
    if objective in PAIR_LABELS:
        fields.append(pa.field(PAIR_LABELS[objective], pa.int8(), nullable=False))
    if sources > 1:
        fields.append(pa.field(SOURCE, pa.uint16(), nullable=False))
    if word_starts:
        fields.append(pa.field(WORD_STARTS, _list_of(pa.bool_()), nullable=False))
    if static_masking:
        fields.append(pa.field(MASKED_POSITIONS, _list_of(pa.uint16()), nullable=False))
        fields.append(pa.field(MASKED_IDS, ids, nullable=False))
    return pa.schema(fields)


def _list_of(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", item, nullable=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEntry:
    """One immutable object: its name below the generation, its size and checksum."""

    name: str
    bytes: int
    sha256: str

    @staticmethod
    def of(name: str, data: builtins.bytes) -> ObjectEntry:
        """Describe `data` as the object `name`."""
        return ObjectEntry(name=name, bytes=len(data), sha256=sha256(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One Arrow IPC file of instances, its lengths sidecar and its record batches."""

    object: ObjectEntry
    lengths: ObjectEntry
    """uint16 a row, little-endian: tokens of each instance."""
    split: str
    rows: int
    tokens: int
    first_instance: int
    """Instance number of the first row: the identity masks are drawn from."""
    batch_offsets: tuple[int, ...]
    """Byte offset of each record batch's IPC message, and of the end of the last."""
    batch_rows: tuple[int, ...]
    batch_tokens: tuple[int, ...]
    """Tokens of each record batch, so that lanes are cut by tokens before a shard is read."""
    batch_crc32: tuple[int, ...]
    """CRC-32 of each message, so that a range of the file can be verified alone."""

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> ShardEntry:
        """Rebuild an entry from its manifest form."""
        return ShardEntry(
            **{
                **entry,
                "object": ObjectEntry(**entry["object"]),
                "lengths": ObjectEntry(**entry["lengths"]),
                "batch_offsets": tuple(entry["batch_offsets"]),
                "batch_rows": tuple(entry["batch_rows"]),
                "batch_tokens": tuple(entry["batch_tokens"]),
                "batch_crc32": tuple(entry["batch_crc32"]),
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Return the manifest form."""
        return asdict(self)


def canonical_json(value: Any) -> bytes:
    """Serialise deterministically: sorted keys, finite floats only, one final newline."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


@functools.cache
def byte_shaping_versions() -> dict[str, str]:
    """Return the versions of the libraries whose release can change the bytes of an artefact."""
    import tokenizers
    from icu4py import icu_version

    return {
        "icu": icu_version,
        "pyarrow": pa.__version__,
        "tokenizers": tokenizers.__version__,
        "unicode": unicodedata.unidata_version,
    }


def require_versions(wanted: Mapping[str, str]) -> None:
    """Raise ClusterError unless this process has the libraries of these byte-shaping versions.

    A fingerprint is made of the driver's; a worker of another image would write other bytes
    under it.
    """
    found = byte_shaping_versions()
    differing = [
        f"{name} {found.get(name)} where the driver has {version}"
        for name, version in wanted.items()
        if found.get(name) != version
    ]
    if differing:
        raise ClusterError(
            f"{socket.gethostname()}: {', '.join(differing)}: its bytes would differ; give every "
            "machine of the cluster the same image or lock file"
        )


def fingerprint(
    stage: str,
    *,
    identity: Mapping[str, Any],
    inputs: Mapping[str, Any],
    versions: Mapping[str, str] | None = None,
) -> str:
    """Return the 20 hexadecimal digits that name a generation of `stage`.

    Covers the identity fields, the inputs' fingerprints, the stage's own version and the
    versions that shape bytes (those of the data half unless given).
    """
    what = {
        "identity": identity,
        "inputs": inputs,
        "manifest_version": MANIFEST_VERSION,
        "stage": stage,
        "stage_version": STAGE_VERSIONS[stage],
        "versions": dict(byte_shaping_versions() if versions is None else versions),
    }
    return sha256(canonical_json(what))[:20]
