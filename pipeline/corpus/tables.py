"""Formats parquet and arrow: one document a row, its place the row's number in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.corpus.charset import Decoder, choose_charset
from pipeline.corpus.content import Content
from pipeline.corpus.fields import Identifiers
from pipeline.corpus.ipc_streams import ipc_streams
from pipeline.corpus.parquet_groups import open_parquet, row_group_starts
from pipeline.corpus.report import RawDocument
from pipeline.errors import InputError

_BATCH_BYTES = 1 << 22
_MOST_ROWS = 4096


def read_parquet(content: Content) -> Iterator[RawDocument]:
    """Yield the documents of the row groups that start in the content's range."""
    part = content.part
    with content.seekable() as file:
        starts = row_group_starts(file, content.location)
        opened = open_parquet(file, content.location)
        metadata = opened.metadata
        columns = _column_paths(content, opened.schema_arrow)
        whole = bool(content.compression)
        row = 0
        reader = _Rows(content)
        for group, start in enumerate(starts[: metadata.num_row_groups]):
            rows = metadata.row_group(group).num_rows
            if whole or part.start <= start < part.end:
                size = metadata.row_group(group).total_byte_size // max(rows, 1) + 1
                batches = opened.iter_batches(
                    batch_size=max(1, min(_MOST_ROWS, _BATCH_BYTES // size)),
                    row_groups=[group],
                    columns=columns,
                    use_threads=False,
                )
                yield from reader.documents(_explained(batches, content, "Parquet"), row)
            row += rows


def read_arrow(content: Content) -> Iterator[RawDocument]:
    """Yield the documents of an Arrow IPC file or stream, by record batch."""
    reader = _Rows(content)
    if content.head.startswith(b"ARROW1"):
        with content.seekable() as file:
            yield from reader.documents(_explained(_ipc_file(file, content), content, "Arrow"), 0)
        return
    row = 0
    for batches in ipc_streams(content):
        yield from reader.documents(batches, row)
        row = reader.next_row


def _ipc_file(file: pa.NativeFile, content: Content) -> Iterator[pa.RecordBatch]:
    opened = pa.ipc.open_file(file)
    wanted = {name.split(".")[0] for name in _column_paths(content, opened.schema)}
    fields = [number for number, name in enumerate(opened.schema.names) if name in wanted]
    file.seek(0)
    opened = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=fields))
    for number in range(opened.num_record_batches):
        yield opened.get_batch(number)


def _explained(
    batches: Iterator[pa.RecordBatch], content: Content, kind: str
) -> Iterator[pa.RecordBatch]:
    row = 0
    try:
        for batch in batches:
            yield batch
            row += batch.num_rows
    except (pa.ArrowException, OSError, EOFError) as error:
        raise InputError(
            f"{content.location}: cannot read it as {kind} after row {row} of this part: {error}; "
            "repair or remove the file"
        ) from None


def _column_paths(content: Content, schema: pa.Schema) -> list[str]:
    """Return the columns to read; InputError if the file lacks one or it holds no text."""
    source = content.source
    names = [source.text_field, *([source.id_field] if source.id_field else [])]
    for key, name in zip(("text_field", "id_field"), names, strict=False):
        kind = _type_at(schema, name)
        text = kind is not None and _is_text(kind)
        if not text and not (key == "id_field" and kind is not None and _is_integer(kind)):
            found = f"is {kind}, no text" if kind is not None else "is not there"
            raise InputError(
                f'{content.location}: column "{name}" {found} (columns: '
                f"{', '.join(schema.names)}); set documents.sources[{source.name}].{key}"
            )
    return names


def _type_at(schema: pa.Schema, name: str) -> pa.DataType | None:
    if name in schema.names:
        return schema.field(name).type
    first, *others = name.split(".")
    kind = schema.field(first).type if first in schema.names else None
    for part in others:
        if kind is None or not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            return None
        kind = kind.field(part).type
    return kind


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(_value_type(kind)))


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    kind = _value_type(kind)
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(check(kind) for check in checks)


def _values(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in batch.schema.names:
        values = batch.column(name)
    else:
        first, *others = name.split(".")
        values = pc.struct_field(batch.column(first), others)
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


class _Rows:
    """Rows of record batches to documents, by the source's policies."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._decoder = Decoder(
            choose_charset("utf-8", b""), content.source.undecodable, content.report
        )
        self._identifiers = Identifiers(content)
        self.next_row = 0

    def documents(self, batches: Iterator[pa.RecordBatch], row: int) -> Iterator[RawDocument]:
        """Yield the documents of batches whose first row is row `row` of the file."""
        checked = False
        for batch in batches:
            if not checked:
                _column_paths(self._content, batch.schema)
                checked = True
            for start, piece in _pieces(batch):
                yield from self._piece(piece, row + start)
            row += batch.num_rows
        self.next_row = row

    def _piece(self, batch: pa.RecordBatch, row: int) -> Iterator[RawDocument]:
        source = self._content.source
        # As bytes: the readers do not check that strings are UTF-8, Python's decoder does.
        texts = _values(batch, source.text_field).cast(pa.large_string()).cast(pa.large_binary())
        identifiers = (
            _values(batch, source.id_field).cast(pa.large_string()).to_pylist()
            if source.id_field
            else None
        )
        for number, value in enumerate(texts):
            place = f"{self._content.location}: row {row + number}"
            data = value.as_py()
            identifier = identifiers[number] if identifiers is not None else row + number
            if data is None or identifier is None:
                name = source.text_field if data is None else source.id_field
                self._content.malformed(place, f'column "{name}" is null', "fill it")
                continue
            text = self._decoder.decode(data, _byte_place(place))
            if isinstance(identifier, str):
                identifier = self._identifiers.register(identifier, place)
            yield RawDocument(self._content.part.path, identifier, text)


def _byte_place(place: str) -> Callable[[int], str]:
    return lambda position: f"{place}: byte offset {position} of the text"


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (first row, slice): a record batch may be large, Python strings are larger."""
    rows = max(1, min(_MOST_ROWS, _BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, rows):
        yield start, batch.slice(start, rows)
