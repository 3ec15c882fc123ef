"""Run files: the rows of one chunk of input, grouped, each group readable by its byte range."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.errors import CorruptError
from pipeline.storage import Storage, read_checked


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one group in a run file: where they lie, and their CRC-32."""

    group: int
    start: int
    end: int
    crc32: int


def grouped_bytes(
    table: pa.Table, group: NDArray[np.integer], groups: int
) -> tuple[bytes, list[Piece]]:
    """Write rows as one IPC stream a group, back to back; a group without rows has no piece."""
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(groups + 1))
    parts: list[bytes] = []
    pieces: list[Piece] = []
    end = 0
    for number in range(groups):
        rows = order[bounds[number] : bounds[number + 1]]
        if rows.size:
            # Read back once and gone then: zstd would cost four times the CPU.
            part = table if rows.size == table.num_rows else table.take(pa.array(rows))
            data = write_stream(part, compression="lz4")
            parts.append(data)
            pieces.append(Piece(number, end, end + len(data), zlib.crc32(data)))
            end += len(data)
    return b"".join(parts), pieces


def write_stream(table: pa.Table, compression: str = "zstd") -> bytes:
    """Write a table as one compressed Arrow IPC stream of one record batch."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def read_piece(storage: Storage, name: str, piece: Piece) -> pa.Table:
    """Read one group of a run file; CorruptError unless its CRC-32 is the marker's."""

    def check(data: bytes) -> None:
        if zlib.crc32(data) != piece.crc32:
            raise CorruptError(
                f"{storage.uri}/{name}: bytes {piece.start} to {piece.end}: CRC-32 differs from "
                "the marker's; the file was cut short or changed, remove this generation and run "
                "again"
            )

    length = piece.end - piece.start
    data = read_checked(lambda: storage.read_range(name, piece.start, length), check)
    return pa.ipc.open_stream(data).read_all()


def read_pieces(
    storage: Storage, pieces: Sequence[tuple[str, Piece]], schema: pa.Schema
) -> Iterator[pa.Table]:
    """Read pieces of run files, (name, piece) each, after an empty table of their schema."""
    yield schema.empty_table()
    for name, piece in pieces:
        yield read_piece(storage, name, piece)
