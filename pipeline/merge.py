"""The last pass over documents: one range of a partition of every run file -> its documents.

They come in the order of their hashes. A partition is one range, but for the largest; a copy
stands in the range of its original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.contract import DOCUMENT_SCHEMA
from pipeline.errors import InputError
from pipeline.paragraphs import without
from pipeline.weights import copies, repeat_documents

# Rows of a record batch of documents hold about this many bytes of text.
_BATCH_TEXT_BYTES = 16_000_000


class Losses:
    """What became of a run's documents beside those that are kept, by source and reason."""

    def __init__(self, sources: int) -> None:
        self.by_source: list[Counter[str]] = [Counter() for _ in range(sources)]

    def add(self, reason: str, table: pa.Table, times: NDArray[np.int64] | None = None) -> None:
        """Count each row once, or as often as `times` says, for its source."""
        sources = np.asarray(table["source"])
        for number, found in enumerate(np.bincount(sources, times)):
            if found:
                self.by_source[number][reason] += int(found)


def merge_rows(
    runs: Iterable[pa.Table],
    dropped_documents: Iterable[pa.Table],
    dropped_paragraphs: Iterable[pa.Table],
    weights: Sequence[int],
    losses: Losses,
    *,
    train_partitions: int,
    seed: int,
) -> pa.Table:
    """Return these rows' documents by document hash (then key): RUN_SCHEMA.

    Without what the deduplicate passes found, each as often as its source weighs.
    """
    table = pa.concat_tables(runs)
    _require_distinct_keys(table)
    number = copies(table, weights, train_partitions)
    losses.add("dropped_sampled", table.filter(pa.array(number == 0)))
    table, number = table.filter(pa.array(number > 0)), number[number > 0]
    unwanted = [part["document_hash"].combine_chunks() for part in dropped_documents]
    if any(map(len, unwanted)):
        gone = pc.is_in(table["document_hash"], value_set=pa.concat_arrays(unwanted))
        losses.add("dropped_duplicate", table.filter(gone))
        table, number = table.filter(pc.invert(gone)), number[~np.asarray(gone)]
    table, rows = without(table, dropped_paragraphs)
    if rows.size:
        losses.add("repeated_paragraphs_dropped", table.take(pa.array(rows)))
        empty = pc.equal(pc.list_value_length(table["sentences"]), 0)
        losses.add("dropped_repeated_paragraphs", table.filter(empty))
        table, number = table.filter(pc.invert(empty)), number[~np.asarray(empty)]
    losses.add("repetitions", table, number - 1)
    table = repeat_documents(table, number, seed)
    return table.sort_by([("document_hash", "ascending"), ("document_key", "ascending")])


def _require_distinct_keys(table: pa.Table) -> None:
    """Refuse two documents of one key: what is done to one would be done to both."""
    # Of one key they are of one hash, and so in one range of one partition.
    if pc.count_distinct(table["document_hash"]).as_py() == table.num_rows:
        return
    counted = table.group_by("document_key").aggregate([([], "count_all")])
    repeated = counted.filter(pc.greater(counted["count_all"], 1))["document_key"].to_pylist()
    if repeated:
        key = min(repeated)
        raise InputError(
            f"documents.sources[{key.partition('/')[0]}]: {len(repeated)} document keys stand "
            f"for more than one document, {key} among them; make the identifiers of its "
            "`id_field` distinct, or leave `id_field` out"
        )


def write_documents(tables: Iterable[pa.Table]) -> bytes:
    """Write tables with the columns of DOCUMENT_SCHEMA as one Arrow IPC file (zstd).

    Record batches hold about 16 MB of text.
    """
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_file(sink, DOCUMENT_SCHEMA, options=options) as writer:
        for table in tables:
            documents = table.select(DOCUMENT_SCHEMA.names).cast(DOCUMENT_SCHEMA)
            for batch in _text_batches(documents.combine_chunks()):
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
