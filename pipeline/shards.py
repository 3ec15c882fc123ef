"""Instance shards: Arrow IPC files whose record batches can be read and verified by range."""

from __future__ import annotations

import io
import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.contract import (
    MASKED_IDS,
    MASKED_POSITIONS,
    PAIR_LABELS,
    SOURCE,
    WORD_STARTS,
    Compression,
    ObjectEntry,
    ShardEntry,
)
from pipeline.errors import CorruptError
from pipeline.instance_rows import InstanceRows
from pipeline.storage import Storage, read_checked

_MAGIC_BYTES = 8  # "ARROW1" and its padding


def record_batch(rows: InstanceRows, schema: pa.Schema, start: int, end: int) -> pa.RecordBatch:
    """Return rows [start, end) under the contract's schema."""
    ragged: dict[str, tuple[Any, Any]] = {
        "input_ids": (rows.input_ids, rows.offsets),
        WORD_STARTS: (rows.word_starts, rows.offsets),
        MASKED_POSITIONS: (rows.masked_positions, rows.masked_offsets),
        MASKED_IDS: (rows.masked_lm_ids, rows.masked_offsets),
    }
    flat: dict[str, Any] = dict.fromkeys(PAIR_LABELS.values(), rows.pair_labels)
    flat["first_segment_length"] = rows.first_segment_length
    flat[SOURCE] = rows.sources
    columns = []
    for field in schema:
        if field.name in ragged:
            columns.append(_ragged(*ragged[field.name], start, end, field.type))
        else:
            columns.append(pa.array(flat[field.name][start:end]))
    return pa.record_batch(columns, schema=schema)


def _ragged(
    values: Any, offsets: NDArray[np.int64], start: int, end: int, kind: pa.DataType
) -> pa.ListArray:
    base = offsets[start]
    inner = pa.array(values[base : offsets[end]])
    return pa.ListArray.from_arrays((offsets[start : end + 1] - base).astype(np.int32), inner, kind)


def write_shard(
    rows: InstanceRows,
    schema: pa.Schema,
    *,
    name: str,
    split: str,
    start: int,
    end: int,
    rows_per_batch: int,
    first_instance: int,
    compression: Compression = "zstd",
) -> tuple[dict[str, bytes], ShardEntry]:
    """Write rows [start, end) as one shard and its lengths sidecar.

    Returns the objects by name and the manifest's entry. Every record batch has
    `rows_per_batch` rows except the last.
    """
    # Arrow's own stream copies all that was written once more to give it as bytes.
    file = io.BytesIO()
    sink = pa.PythonFile(file, mode="w")
    options = pa.ipc.IpcWriteOptions(
        compression=None if compression == "none" else compression, use_threads=False
    )
    offsets = [_MAGIC_BYTES + schema.serialize().size]
    counts = []
    tokens = []
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for first in range(start, end, rows_per_batch):
            last = min(first + rows_per_batch, end)
            writer.write_batch(record_batch(rows, schema, first, last))
            offsets.append(sink.tell())
            counts.append(last - first)
            tokens.append(int(rows.offsets[last] - rows.offsets[first]))
    data = file.getvalue()
    view = memoryview(data)
    lengths = np.diff(rows.offsets[start : end + 1]).astype("<u2")
    objects = {f"{name}.arrow": data, f"{name}.lengths": lengths.tobytes()}
    entry = ShardEntry(
        object=ObjectEntry.of(f"{name}.arrow", data),
        lengths=ObjectEntry.of(f"{name}.lengths", objects[f"{name}.lengths"]),
        split=split,
        rows=end - start,
        tokens=int(rows.offsets[end] - rows.offsets[start]),
        first_instance=first_instance,
        batch_offsets=tuple(offsets),
        batch_rows=tuple(counts),
        batch_tokens=tuple(tokens),
        batch_crc32=tuple(
            zlib.crc32(view[first:last]) for first, last in itertools.pairwise(offsets)
        ),
    )
    return objects, entry


def read_message(storage: Storage, prefix: str, entry: ShardEntry, number: int) -> bytes:
    """Read the IPC message of record batch `number` of a shard by its byte range.

    Raises CorruptError, naming the shard and the range, unless the bytes are the manifest's.
    """
    name = f"{prefix}/{entry.object.name}"
    start, end = entry.batch_offsets[number], entry.batch_offsets[number + 1]

    def check(data: bytes) -> None:
        if len(data) != end - start:
            raise CorruptError(
                f"{storage.uri}/{name}: ends before byte {end}, its manifest says "
                f"{entry.object.bytes} bytes: it was cut short; remove its generation and run "
                "`python -m pipeline instances` again"
            )
        if zlib.crc32(data) != entry.batch_crc32[number]:
            raise CorruptError(
                f"{storage.uri}/{name}: bytes {start} to {end} (record batch {number}): CRC-32 "
                "differs from the manifest's: bytes were changed; remove its generation and run "
                "`python -m pipeline instances` again"
            )

    return read_checked(lambda: storage.read_range(name, start, end - start), check)


def decode_message(message: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """View the record batch that an IPC message holds."""
    return pa.ipc.read_record_batch(pa.py_buffer(message), schema)


def read_batch(
    storage: Storage, prefix: str, entry: ShardEntry, number: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Read and verify record batch `number` of a shard; CorruptError as by `read_message`."""
    return decode_message(read_message(storage, prefix, entry, number), schema)


def read_row_tokens(
    storage: Storage, prefix: str, entry: ShardEntry, number: int
) -> NDArray[np.int64]:
    """Read from the lengths sidecar the tokens of each row of record batch `number`, int64.

    Raises CorruptError, naming the sidecar, unless they are as many as the manifest says.
    """
    name = f"{prefix}/{entry.lengths.name}"
    first, rows = sum(entry.batch_rows[:number]), entry.batch_rows[number]
    data = storage.read_range(name, 2 * first, 2 * rows)
    # A range has no checksum of its own; the sum is held to the manifest instead.
    tokens = np.frombuffer(data[: len(data) // 2 * 2], "<u2").astype(np.int64)
    if tokens.size != rows or int(tokens.sum()) != entry.batch_tokens[number]:
        raise CorruptError(
            f"{storage.uri}/{name}: rows {first} to {first + rows} have {tokens.size} lengths and "
            f"{tokens.sum()} tokens, its manifest says {rows} and {entry.batch_tokens[number]}: it "
            "was cut short or changed; remove its generation and run "
            "`python -m pipeline instances` again"
        )
    return tokens


def instance_rows(batch: pa.RecordBatch) -> InstanceRows:
    """View a record batch as flat arrays (no copy of the ids)."""
    names = set(batch.schema.names)
    ids, offsets = _flat(batch.column("input_ids"))
    word_starts = positions = masked_offsets = masked_ids = None
    if WORD_STARTS in names:
        word_starts, _ = _flat(batch.column(WORD_STARTS))
    if MASKED_POSITIONS in names:
        positions, masked_offsets = _flat(batch.column(MASKED_POSITIONS))
        masked_ids, _ = _flat(batch.column(MASKED_IDS))
    labels = [np.asarray(batch.column(name)) for name in PAIR_LABELS.values() if name in names]
    return InstanceRows(
        input_ids=ids,
        offsets=offsets,
        first_segment_length=np.asarray(batch.column("first_segment_length")),
        pair_labels=labels[0] if labels else None,
        sources=np.asarray(batch.column(SOURCE)) if SOURCE in names else None,
        word_starts=word_starts,
        masked_positions=positions,
        masked_offsets=masked_offsets,
        masked_lm_ids=masked_ids,
    )


def _flat(column: pa.ListArray) -> tuple[NDArray[Any], NDArray[np.int64]]:
    offsets = np.asarray(column.offsets).astype(np.int64)
    values = np.asarray(column.values)[offsets[0] : offsets[-1]]
    return values, offsets - offsets[0]


def shard_faults(
    data: bytes,
    lengths: bytes,
    entry: ShardEntry,
    schema: pa.Schema,
    vocab_size: int,
    sources: int = 1,
) -> Iterator[str]:
    """Yield what is wrong inside a shard whose sizes and checksums are right."""
    try:
        yield from _inner_faults(data, lengths, entry, schema, vocab_size, sources)
    except pa.ArrowInvalid as error:
        yield f"not a valid Arrow file: {error}"


def _inner_faults(
    data: bytes,
    lengths: bytes,
    entry: ShardEntry,
    schema: pa.Schema,
    vocab_size: int,
    sources: int,
) -> Iterator[str]:
    file = pa.ipc.open_file(pa.BufferReader(data))
    if not file.schema.equals(schema):
        yield f"schema is {file.schema.to_string()!r}, the manifest's {schema.to_string()!r}"
        return
    if file.num_record_batches != len(entry.batch_rows):
        yield f"{file.num_record_batches} record batches, the manifest says {len(entry.batch_rows)}"
        return
    seen = []
    for number in range(file.num_record_batches):
        batch = file.get_batch(number)
        batch.validate(full=True)
        rows = instance_rows(batch)
        if batch.num_rows != entry.batch_rows[number]:
            yield f"record batch {number}: {batch.num_rows} rows, not {entry.batch_rows[number]}"
        if int(rows.offsets[-1]) != entry.batch_tokens[number]:
            yield (
                f"record batch {number}: {rows.offsets[-1]} tokens, not "
                f"{entry.batch_tokens[number]}"
            )
        start, end = entry.batch_offsets[number], entry.batch_offsets[number + 1]
        if zlib.crc32(data[start:end]) != entry.batch_crc32[number]:
            yield f"record batch {number}: CRC-32 of its bytes differs from the manifest's"
        found = _row_faults(rows, vocab_size, sources)
        yield from (f"record batch {number}: {one}" for one in found)
        seen.append(np.diff(rows.offsets))
    counted = np.concatenate(seen) if seen else np.zeros(0, np.int64)
    if counted.size != entry.rows or int(counted.sum()) != entry.tokens:
        yield (
            f"{counted.size} rows and {counted.sum()} tokens, the manifest says {entry.rows} "
            f"and {entry.tokens}"
        )
    if not np.array_equal(np.frombuffer(lengths, "<u2"), counted):
        yield "lengths sidecar differs from the shard's own lengths"


def _row_faults(rows: InstanceRows, vocab_size: int, sources: int) -> Iterator[str]:
    row_tokens = np.diff(rows.offsets)
    if rows.input_ids.size and int(rows.input_ids.max()) >= vocab_size:
        yield f"id {rows.input_ids.max()} beyond {vocab_size} entries"
    if (rows.first_segment_length > row_tokens).any():
        yield "first_segment_length beyond the row"
    if rows.pair_labels is not None and not np.isin(rows.pair_labels, (0, 1)).all():
        yield "a pair label other than 0 and 1"
    if rows.sources is not None and rows.rows and int(rows.sources.max()) >= sources:
        yield f"source {rows.sources.max()} beyond {sources} sources"
    if rows.word_starts is not None and rows.word_starts.size != rows.input_ids.size:
        yield f"{rows.word_starts.size} word_starts for {rows.input_ids.size} ids"
    if rows.masked_offsets is None or rows.masked_positions is None or rows.masked_lm_ids is None:
        return
    masked_tokens = np.diff(rows.masked_offsets)
    if masked_tokens.sum() != rows.masked_lm_ids.size:
        yield f"{masked_tokens.sum()} masked positions, {rows.masked_lm_ids.size} masked ids"
    if (rows.masked_positions >= np.repeat(row_tokens, masked_tokens)).any():
        yield "masked_lm_positions beyond the row"
    if rows.masked_lm_ids.size and int(rows.masked_lm_ids.max()) >= vocab_size:
        yield f"masked id {rows.masked_lm_ids.max()} beyond {vocab_size} entries"
