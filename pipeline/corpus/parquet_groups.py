"""Row groups of a Parquet file as byte places, so that a range of bytes names whole groups."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import InputError

_MAGIC = b"PAR1"
_LENGTH_BYTES = 4
_SCAN_BYTES = 1 << 20


def open_parquet(file: pa.NativeFile, location: str) -> pq.ParquetFile:
    """Open a Parquet file; InputError if it is none or is damaged."""
    try:
        # Pages are read as rows are asked for: a row group may be larger than memory.
        opened = pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{location}: cannot read it as Parquet: {error}; repair or remove the file"
        ) from None
    if file.read_at(len(_MAGIC), 0) != _MAGIC:  # a reader looks at the end alone
        raise InputError(
            f"{location}: byte offset 0: cannot read it as Parquet: it does not begin with "
            f'"{_MAGIC.decode()}"; remove what stands before the file'
        )
    return opened


def row_group_starts(file: pa.NativeFile, location: str) -> list[int]:
    """Return the byte that each row group starts at; the first group owns the file's start."""
    metadata = open_parquet(file, location).metadata
    _check_whole(file, metadata, location)
    starts = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(index) for index in range(group.num_columns)]
        places = [one.data_page_offset for one in columns]
        places += [one.dictionary_page_offset for one in columns if one.has_dictionary_page]
        starts.append(min((place for place in places if place), default=0))
    return [0, *starts[1:]]


def _check_whole(file: pa.NativeFile, metadata: pq.FileMetaData, location: str) -> None:
    """Raise InputError if the file holds more than the table that its footer describes.

    Places in a footer count from the file's start, and a reader takes the last footer: with
    another file before it, what is read are the other's bytes.
    """
    columns = [
        metadata.row_group(group).column(index)
        for group in range(metadata.num_row_groups)
        for index in range(metadata.num_columns)
    ]
    starts = [
        min(one.data_page_offset, one.dictionary_page_offset or one.data_page_offset)
        for one in columns
    ]
    ends = [start + one.total_compressed_size for start, one in zip(starts, columns, strict=True)]
    footer = file.size() - len(_MAGIC) - _LENGTH_BYTES - metadata.serialized_size
    # Indexes and Bloom filters may lie between the columns and the footer, so only the end of one
    # file and the start of the next, within what the columns leave over, are proof.
    left_over = max(0, footer - max(ends, default=len(_MAGIC)))
    if left_over == 0:
        return
    offset, kept = 0, b""
    while offset < left_over + len(_MAGIC):
        data = kept + file.read_at(min(_SCAN_BYTES, left_over + len(_MAGIC) - offset), offset)
        found = data.find(_MAGIC + _MAGIC)
        if found >= 0:
            place = offset - len(kept) + found + len(_MAGIC)
            raise InputError(
                f"{location}: byte offset {place}: another Parquet file begins here, of which the "
                "first one's rows would be lost; split the file in two"
            )
        offset += len(data) - len(kept)
        kept = data[1 - 2 * len(_MAGIC) :]
