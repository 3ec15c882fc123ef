"""What tests of reading share: a source over a path, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from pipeline.corpus import RawDocument, ReadReport, list_files, plan_splits, read_split
from pipeline.errors import InputError
from pipeline.source_config import SourceConfig
from tests.pipeline.cleaned import clean_text, sentences_of

LineFormat = Literal["text", "lines", "jsonl"]
WHOLE = 1 << 40
BOM = b"\xef\xbb\xbf"


def source_of(path: Path | str, kind: Any = "text", **fields: Any) -> SourceConfig:
    return SourceConfig(name="s", format=kind, path=str(path), **fields)


def read_documents(
    source: SourceConfig, split_bytes: int = WHOLE, report: ReadReport | None = None
) -> list[RawDocument]:
    report = ReadReport() if report is None else report
    splits = plan_splits(source, list_files(source, 0, report), split_bytes)
    documents = [one for split in splits for one in read_split(source, split, report)]
    assert not any(one.dropped for one in documents)
    assert report.counts["documents"] == len(documents)
    return documents


def read_all(source: SourceConfig, split_bytes: int = WHOLE) -> list[tuple[str, int | str, str]]:
    """(path, offset, text) of every document of a source."""
    return [(one.path, one.offset, one.text) for one in read_documents(source, split_bytes)]


def read_reported(source: SourceConfig) -> tuple[list[str], ReadReport]:
    report = ReadReport()
    return [one.text for one in read_documents(source, report=report)], report


def texts(data: bytes, tmp_path: Path, kind: LineFormat = "text", **fields: Any) -> list[str]:
    """Cleaned texts of the documents of one file."""
    path = tmp_path / "corpus.txt"
    path.write_bytes(data)
    return [clean_text(text).strip() for _, _, text in read_all(source_of(path, kind, **fields))]


def sentences(data: bytes, tmp_path: Path, kind: LineFormat = "text") -> list[list[str]]:
    return sentences_of(texts(data, tmp_path, kind))


def failure(source: SourceConfig) -> str:
    with pytest.raises(InputError) as caught:
        read_all(source)
    return str(caught.value)


def names_of(source: SourceConfig) -> list[str]:
    return [file.path for file in list_files(source, 0)]


def write_files(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}\n")


Compress = Callable[[bytes], bytes]
