"""Text -> cleaned documents of sentences, partitioned by hash.

Every function is pure: the same raw documents, config and seed give the same bytes, whatever
cut them into splits and whoever ran which.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import DocumentsConfig, SourceConfig
from pipeline.contract import DOCUMENT_SCHEMA
from pipeline.corpus import RawDocument
from pipeline.errors import CorruptError
from pipeline.keyed_random import derive_key
from pipeline.sentences import split_sentences
from pipeline.storage import Storage

# Characters of documents that are split into sentences together: bounds memory, not results.
_BATCH_CHARACTERS = 4_000_000
# Rows of a record batch of documents hold about this many bytes of text.
_BATCH_TEXT_BYTES = 16_000_000

# What the split pass leaves for the next ones, beside the contract's columns.
RUN_SCHEMA = pa.schema(
    [
        *DOCUMENT_SCHEMA,
        pa.field("content_hash", pa.binary(16), nullable=False),
        pa.field("ordinal", pa.uint32(), nullable=False),  # place among the split's documents
        pa.field("text_bytes", pa.int64(), nullable=False),
        pa.field("partition", pa.uint32(), nullable=False),
    ]
)
FINGERPRINT_COLUMNS = (
    "document_hash", "document_key", "content_hash", "ordinal", "text_bytes", "partition",
)  # fmt: skip

# Line and paragraph separators, vertical tab, form feed, next line and a lone carriage return
# are white space inside a line, never a line end: only \n and \r\n are (as in every stage).
_OTHER_SEPARATORS = re.compile("[\r\x0b\x0c\x1c-\x1f\x85\u2028\u2029]")
# Control characters, NUL and the byte-order mark vanish, as in BERT's own cleaning; U+FFFD too,
# and lone surrogates (JSON can escape one), which have no UTF-8 form.
_VANISHING = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffd]")
_SPACES = re.compile("[ \t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]+")


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """How many partitions the training and the held-out documents are dealt over."""

    train: int
    held_out: int

    @property
    def total(self) -> int:
        """Partitions of both splits; the held-out ones come after the training ones."""
        return self.train + self.held_out


def clean_text(text: str) -> str:
    r"""Return the text in NFC, lines ended by \n alone, other separators and runs of space as one.

    Control characters vanish. Nothing else changes.
    """
    text = text.replace("\r\n", "\n")
    text = _OTHER_SEPARATORS.sub(" ", text)
    text = _VANISHING.sub("", text)
    text = _SPACES.sub(" ", text)
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def document_key(source: str, path: str, offset: int, repetition: int = 0) -> str:
    """Return the text form of a document's identity: source/path#offset.repetition."""
    return f"{source}/{path}#{offset}.{repetition}"


def choose_partitions(raw_bytes: int, config: DocumentsConfig) -> PartitionCounts:
    """Choose P from the bytes of raw input alone, so that it never depends on a run."""
    train = config.partitions or max(1, -(-raw_bytes // 64_000_000))
    held_out = max(1, round(train * config.held_out_fraction)) if config.held_out_fraction else 0
    return PartitionCounts(train, held_out)


def split_documents(
    raw: Iterable[RawDocument],
    source: SourceConfig,
    config: DocumentsConfig,
    partitions: PartitionCounts,
    seed: int,
) -> tuple[pa.Table, Counter[str]]:
    """Clean documents, split them into sentences and give each its partition.

    Returns a table of RUN_SCHEMA in the order read, and the documents read and dropped by reason.
    """
    counts: Counter[str] = Counter()
    tables = [RUN_SCHEMA.empty_table()]
    ordinal = 0
    for batch in _batches(raw):
        keys: list[str] = []
        texts: list[str] = []
        ordinals: list[int] = []
        for document in batch:
            text = clean_text(document.text).strip()
            reason = document.dropped or _reason_to_drop(text, config)
            counts[f"dropped_{reason}" if reason else "kept"] += 1
            if not reason:
                keys.append(document_key(source.name, document.path, document.offset))
                texts.append(text)
                ordinals.append(ordinal)
            ordinal += 1
        tables.append(_run_table(keys, texts, ordinals, source, config, partitions, seed))
    counts["read"] = ordinal
    return pa.concat_tables(tables), counts


def _batches(raw: Iterable[RawDocument]) -> Iterator[list[RawDocument]]:
    batch: list[RawDocument] = []
    characters = 0
    for document in raw:
        batch.append(document)
        characters += len(document.text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _reason_to_drop(text: str, config: DocumentsConfig) -> str:
    if not text:
        return "empty"
    return "too_short" if len(text) < config.minimum_characters else ""


def _run_table(
    keys: Sequence[str],
    texts: Sequence[str],
    ordinals: Sequence[int],
    source: SourceConfig,
    config: DocumentsConfig,
    partitions: PartitionCounts,
    seed: int,
) -> pa.Table:
    place_key = derive_key(seed, "partition").to_bytes(8, "little")
    split_key = derive_key(seed, "held_out").to_bytes(8, "little")
    hashes = [hashlib.blake2b(key.encode(), digest_size=16, key=place_key).digest() for key in keys]
    draws = [hashlib.blake2b(key.encode(), digest_size=8, key=split_key).digest() for key in keys]
    contents = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
    place = np.frombuffer(b"".join(hashes), ">u8")[::2]
    draw = np.frombuffer(b"".join(draws), ">u8")
    # 2**64 is no float64 problem here: the fraction is compared as an integer threshold.
    threshold = int(config.held_out_fraction * (1 << 32)) << 32
    partition = place % np.uint64(partitions.train)
    if partitions.held_out:
        held_out = draw < np.uint64(threshold)
        partition[held_out] = partitions.train + place[held_out] % np.uint64(partitions.held_out)
    return pa.table(
        [
            pa.array(hashes, pa.binary(16)),
            pa.array(keys, pa.large_string()),
            split_sentences(texts, source.locale) if texts else pa.array([], RUN_SCHEMA.types[2]),
            pa.array(contents, pa.binary(16)),
            pa.array(ordinals, pa.uint32()),
            pa.array([len(text.encode()) for text in texts], pa.int64()),
            pa.array(partition.astype(np.uint32)),
        ],
        schema=RUN_SCHEMA,
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one group in a grouped object: a byte range and its CRC-32."""

    start: int
    end: int
    crc32: int


def grouped_bytes(
    table: pa.Table, group: NDArray[np.integer], groups: int
) -> tuple[bytes, list[Piece]]:
    """Write rows as one IPC stream a group, back to back; a group without rows takes no bytes."""
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(groups + 1))
    parts: list[bytes] = []
    pieces: list[Piece] = []
    end = 0
    for number in range(groups):
        rows = order[bounds[number] : bounds[number + 1]]
        data = write_stream(table.take(pa.array(rows))) if rows.size else b""
        parts.append(data)
        pieces.append(Piece(end, end + len(data), zlib.crc32(data)))
        end += len(data)
    return b"".join(parts), pieces


def write_stream(table: pa.Table) -> bytes:
    """Write a table as one zstd-compressed Arrow IPC stream of one record batch."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def read_piece(storage: Storage, name: str, piece: Piece, schema: pa.Schema) -> pa.Table:
    """Read one group of a grouped object; CorruptError unless its CRC-32 is the marker's."""
    if piece.start == piece.end:
        return schema.empty_table()
    data = storage.read_range(name, piece.start, piece.end - piece.start)
    if zlib.crc32(data) != piece.crc32:
        raise CorruptError(
            f"{storage.uri}/{name}: bytes {piece.start} to {piece.end}: CRC-32 differs from the "
            "marker's; the file was cut short or changed, remove this generation and run again"
        )
    return pa.ipc.open_stream(data).read_all()


def content_group(content_hashes: pa.ChunkedArray, groups: int) -> NDArray[np.uint32]:
    """Return the deduplication range of each content hash, uint32."""
    data = content_hashes.combine_chunks()
    leading = np.frombuffer(data.buffers()[1], ">u8")[data.offset * 2 :: 2][: len(data)]
    return (leading % np.uint64(groups)).astype(np.uint32)


def duplicates(fingerprints: Sequence[pa.Table]) -> pa.Table:
    """Return the rows that repeat an earlier text: all but the smallest document key of each."""
    table = pa.concat_tables(fingerprints)
    table = table.sort_by([("content_hash", "ascending"), ("document_key", "ascending")])
    contents = table["content_hash"].combine_chunks()
    if len(contents) < 2:
        return table.slice(0, 0)
    same = pc.equal(contents.slice(1), contents.slice(0, len(contents) - 1))
    return table.filter(pa.concat_arrays([pa.array([False]), same]))


def merge_partition(runs: Sequence[pa.Table], dropped: Sequence[pa.Table]) -> pa.Table:
    """Return one partition's documents, sorted by document hash (then key), without duplicates."""
    table = pa.concat_tables(runs)
    unwanted = pa.concat_arrays(
        [chunk for part in dropped for chunk in part["document_hash"].chunks]
        or [pa.array([], pa.binary(16))]
    )
    table = table.filter(pc.invert(pc.is_in(table["document_hash"], value_set=unwanted)))
    table = table.sort_by([("document_hash", "ascending"), ("document_key", "ascending")])
    return table.select(DOCUMENT_SCHEMA.names).cast(DOCUMENT_SCHEMA)


def write_documents(table: pa.Table) -> bytes:
    """Write documents as an Arrow IPC file (zstd) of record batches of about 16 MB of text."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        for batch in _text_batches(table.combine_chunks()):
            writer.write_table(batch)
    return bytes(sink.getvalue().to_pybytes())


def _text_batches(table: pa.Table) -> Iterator[pa.Table]:
    if table.num_rows == 0:
        return
    sentences = table["sentences"].chunk(0)
    text_offsets = np.asarray(sentences.values.buffers()[1]).view(np.int64)
    ends = text_offsets[np.asarray(sentences.offsets)][1:]
    batch = (ends - 1) // _BATCH_TEXT_BYTES
    bounds = np.flatnonzero(np.diff(batch, prepend=-2))
    for start, end in zip(bounds, [*bounds[1:], table.num_rows], strict=True):
        yield table.slice(start, end - start).combine_chunks()


def read_documents(data: bytes) -> pa.Table:
    """Read a partition written by `write_documents`."""
    return pa.ipc.open_file(pa.BufferReader(data)).read_all()
