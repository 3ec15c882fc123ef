"""Raw files -> splits -> documents of text: listing, compression, character sets, formats.

A document's place is (path below the source's root without its compression suffix, byte offset
in the uncompressed file, or row or page), so it does not depend on how files are cut into splits.
"""

from pipeline.corpus.compression import COMPRESSION_SUFFIXES
from pipeline.corpus.files import InputFile, list_files
from pipeline.corpus.reading import read_split
from pipeline.corpus.report import MOST_PLACES, RawDocument, ReadReport
from pipeline.corpus.splits import FileRange, Split, plan_splits

__all__ = [
    "COMPRESSION_SUFFIXES",
    "MOST_PLACES",
    "FileRange",
    "InputFile",
    "RawDocument",
    "ReadReport",
    "Split",
    "list_files",
    "plan_splits",
    "read_split",
]
