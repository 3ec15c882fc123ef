"""Instance shards: Arrow IPC files whose record batches can be read and verified by range."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.contract import MASKED_IDS, MASKED_POSITIONS, NSP_LABEL, ObjectEntry, ShardEntry
from pipeline.errors import CorruptError
from pipeline.storage import Storage

_MAGIC_BYTES = 8  # "ARROW1" and its padding


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRows:
    """Instances as flat arrays; the last three are None unless masking is static.

    `input_ids` [N] uint16 or uint32; `offsets` int64 [I + 1]; `first_segment_length` uint16 [I];
    `next_sentence_label` int8 [I]; `masked_positions` uint16 [M], within the row;
    `masked_offsets` int64 [I + 1] into them; `masked_lm_ids` [M] of the dtype of `input_ids`.
    """

    input_ids: NDArray[Any]
    offsets: NDArray[np.int64]
    first_segment_length: NDArray[np.uint16]
    next_sentence_label: NDArray[np.int8]
    masked_positions: NDArray[np.uint16] | None = None
    masked_offsets: NDArray[np.int64] | None = None
    masked_lm_ids: NDArray[Any] | None = None

    @property
    def rows(self) -> int:
        """Number of instances."""
        return self.offsets.size - 1

    def flat_masked_positions(self) -> NDArray[np.int64]:
        """Return the masked positions as int64 [M] indices of `input_ids` (static masking)."""
        assert self.masked_positions is not None and self.masked_offsets is not None
        starts = np.repeat(self.offsets[:-1], np.diff(self.masked_offsets))
        return starts + self.masked_positions

    def original_ids(self) -> NDArray[Any]:
        """Return `input_ids` with static masks undone."""
        if self.masked_offsets is None:
            return self.input_ids
        ids = self.input_ids.copy()
        ids[self.flat_masked_positions()] = self.masked_lm_ids
        return ids

    def record_batch(self, schema: pa.Schema, start: int, end: int) -> pa.RecordBatch:
        """Return rows [start, end) under the contract's schema."""
        columns = [
            _ragged(self.input_ids, self.offsets, start, end, schema.field("input_ids").type),
            pa.array(self.first_segment_length[start:end]),
            pa.array(self.next_sentence_label[start:end]),
        ]
        if self.masked_offsets is not None:
            for name, values in (
                (MASKED_POSITIONS, self.masked_positions),
                (MASKED_IDS, self.masked_lm_ids),
            ):
                kind = schema.field(name).type
                columns.append(_ragged(values, self.masked_offsets, start, end, kind))
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
) -> tuple[dict[str, bytes], ShardEntry]:
    """Write rows [start, end) as one shard and its lengths sidecar.

    Returns the objects by name and the manifest's entry. Every record batch has
    `rows_per_batch` rows except the last.
    """
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    offsets = [_MAGIC_BYTES + schema.serialize().size]
    counts = []
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for first in range(start, end, rows_per_batch):
            last = min(first + rows_per_batch, end)
            writer.write_batch(rows.record_batch(schema, first, last))
            offsets.append(sink.tell())
            counts.append(last - first)
    data = sink.getvalue().to_pybytes()
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
        batch_crc32=tuple(
            zlib.crc32(data[first:last]) for first, last in itertools.pairwise(offsets)
        ),
    )
    return objects, entry


def read_batch(
    storage: Storage, prefix: str, entry: ShardEntry, number: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Read record batch `number` of a shard by its byte range.

    Raises CorruptError, naming the shard and the range, unless the bytes are the manifest's.
    """
    name = f"{prefix}/{entry.object.name}"
    start, end = entry.batch_offsets[number], entry.batch_offsets[number + 1]
    data = storage.read_range(name, start, end - start)
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
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def instance_rows(batch: pa.RecordBatch) -> InstanceRows:
    """View a record batch as flat arrays (no copy of the ids)."""
    ids, offsets = _flat(batch.column("input_ids"))
    positions = masked_offsets = masked_ids = None
    if MASKED_POSITIONS in batch.schema.names:
        positions, masked_offsets = _flat(batch.column(MASKED_POSITIONS))
        masked_ids, _ = _flat(batch.column(MASKED_IDS))
    return InstanceRows(
        input_ids=ids,
        offsets=offsets,
        first_segment_length=np.asarray(batch.column("first_segment_length")),
        next_sentence_label=np.asarray(batch.column(NSP_LABEL)),
        masked_positions=positions,
        masked_offsets=masked_offsets,
        masked_lm_ids=masked_ids,
    )


def _flat(column: pa.ListArray) -> tuple[NDArray[Any], NDArray[np.int64]]:
    offsets = np.asarray(column.offsets).astype(np.int64)
    values = np.asarray(column.values)[offsets[0] : offsets[-1]]
    return values, offsets - offsets[0]


def shard_faults(
    data: bytes, lengths: bytes, entry: ShardEntry, schema: pa.Schema, vocab_size: int
) -> Iterator[str]:
    """Yield what is wrong inside a shard whose sizes and checksums are right."""
    try:
        yield from _inner_faults(data, lengths, entry, schema, vocab_size)
    except pa.ArrowInvalid as error:
        yield f"not a valid Arrow file: {error}"


def _inner_faults(
    data: bytes, lengths: bytes, entry: ShardEntry, schema: pa.Schema, vocab_size: int
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
        start, end = entry.batch_offsets[number], entry.batch_offsets[number + 1]
        if zlib.crc32(data[start:end]) != entry.batch_crc32[number]:
            yield f"record batch {number}: CRC-32 of its bytes differs from the manifest's"
        yield from (f"record batch {number}: {one}" for one in _row_faults(rows, vocab_size))
        seen.append(np.diff(rows.offsets))
    counted = np.concatenate(seen) if seen else np.zeros(0, np.int64)
    if counted.size != entry.rows or int(counted.sum()) != entry.tokens:
        yield (
            f"{counted.size} rows and {counted.sum()} tokens, the manifest says {entry.rows} "
            f"and {entry.tokens}"
        )
    if not np.array_equal(np.frombuffer(lengths, "<u2"), counted):
        yield "lengths sidecar differs from the shard's own lengths"


def _row_faults(rows: InstanceRows, vocab_size: int) -> Iterator[str]:
    row_tokens = np.diff(rows.offsets)
    if rows.input_ids.size and int(rows.input_ids.max()) >= vocab_size:
        yield f"id {rows.input_ids.max()} beyond {vocab_size} entries"
    if (rows.first_segment_length > row_tokens).any():
        yield "first_segment_length beyond the row"
    if rows.masked_offsets is None or rows.masked_positions is None or rows.masked_lm_ids is None:
        return
    masked_tokens = np.diff(rows.masked_offsets)
    if masked_tokens.sum() != rows.masked_lm_ids.size:
        yield f"{masked_tokens.sum()} masked positions, {rows.masked_lm_ids.size} masked ids"
    if (rows.masked_positions >= np.repeat(row_tokens, masked_tokens)).any():
        yield "masked_lm_positions beyond the row"
    if rows.masked_lm_ids.size and int(rows.masked_lm_ids.max()) >= vocab_size:
        yield f"masked id {rows.masked_lm_ids.max()} beyond {vocab_size} entries"
