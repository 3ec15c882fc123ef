"""Row groups of a Parquet file as byte places, so that a range of bytes names whole groups."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import InputError


def open_parquet(file: pa.NativeFile, location: str) -> pq.ParquetFile:
    """Open a Parquet file; InputError if it is none or is damaged."""
    try:
        # Pages are read as rows are asked for: a row group may be larger than memory.
        return pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{location}: cannot read it as Parquet: {error}; repair or remove the file"
        ) from None


def row_group_starts(file: pa.NativeFile, location: str) -> list[int]:
    """Return the byte that each row group starts at; the first group owns the file's start."""
    metadata = open_parquet(file, location).metadata
    starts = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(index) for index in range(group.num_columns)]
        places = [one.data_page_offset for one in columns]
        places += [one.dictionary_page_offset for one in columns if one.has_dictionary_page]
        starts.append(min((place for place in places if place), default=0))
    return [0, *starts[1:]]
