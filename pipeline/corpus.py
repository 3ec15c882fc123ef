"""Raw files -> splits -> rows of text: readers by format.

A document's place is (path below the source's root without its compression suffix, byte offset
in the uncompressed file), so it does not depend on how files are cut into splits.
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipeline import docstrings
from pipeline.config import SourceConfig
from pipeline.errors import InputError
from pipeline.keyed_random import derive_key

COMPRESSION_SUFFIXES = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_BOM = b"\xef\xbb\xbf"
# A blank line is empty or holds ASCII white space only; a lone \r never ends a line.
_BLANK_LINES = re.compile(rb"\n(?:[ \t\r\f\v]*\n)+")
_LINE_END = re.compile(rb"\n")
_BLANK = b" \t\r\f\v\n"
_SCAN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a source: where it is, what names it, what identifies its bytes."""

    source: str
    location: str
    path: str
    """Below the source's root, without a compression suffix: part of every document key."""
    bytes: int
    sha256: str

    @property
    def compressed(self) -> bool:
        return Path(self.location).suffix in COMPRESSION_SUFFIXES


@dataclass(frozen=True, slots=True)
class FileRange:
    """The bytes [start, end) of a file, both at the start of a document (or the file's end)."""

    location: str
    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Split:
    """One unit of reading: ranges of files of one source, in order."""

    number: int
    source: str
    ranges: tuple[FileRange, ...]

    @property
    def bytes(self) -> int:
        """Raw bytes of the split."""
        return sum(part.end - part.start for part in self.ranges)


MOST_PLACES = 20


class ReadReport:
    def __init__(self):
        self.counts = {}
        self.places = []

    def as_dict(self):
        return {"counts": self.counts, "places": self.places}


@dataclass(frozen=True, slots=True)
class RawDocument:
    """One document as read: its place and its text, or why it has none."""

    path: str
    offset: int
    text: str
    dropped: str = ""


def list_files(source: SourceConfig, seed: int) -> list[InputFile]:
    """Return the source's files with their checksums, in path order.

    A source with a byte limit comes in keyed-hash order instead, so that the files a limit
    keeps are a random sample; the standard library comes before installed packages.
    Raises InputError if there are none, or if one cannot be read.
    """
    if source.format == "python_docstrings":
        located = docstrings.list_modules(source.path)
    else:
        located = _list_paths(source)
    if not located:
        raise InputError(
            f"documents.sources[{source.name}].path = {source.path}: no files; check the path"
        )
    with ThreadPoolExecutor(4) as pool:
        digests = list(pool.map(_digest, [location for location, _ in located]))
    files = [
        InputFile(source.name, location, path, size, digest)
        for (location, path), (size, digest) in zip(located, digests, strict=True)
    ]
    if sum(file.bytes for file in files) == 0:
        raise InputError(
            f"documents.sources[{source.name}].path = {source.path}: "
            f"{len(files)} files, all empty; give it text"
        )
    if source.limit_bytes:
        key = derive_key(seed, "corpus").to_bytes(8, "little")

        def order(file: InputFile) -> tuple[bool, bytes, str]:
            digest = hashlib.blake2b(file.path.encode(), digest_size=16, key=key).digest()
            return (not file.path.startswith(docstrings.STANDARD_LIBRARY), digest, file.path)

        return sorted(files, key=order)
    return sorted(files, key=lambda file: file.path)


def _list_paths(source: SourceConfig) -> list[tuple[str, str]]:
    root = Path(source.path).expanduser()
    if root.is_dir():
        found = _walk(root)
    elif root.exists():
        found, root = [root], root.parent
    else:
        found = [Path(name) for name in glob.glob(str(root), recursive=True)]
        found = [path for path in found if path.is_file()]
        root = Path(*root.parts[: _first_pattern(root.parts)])
        if not found:
            raise InputError(
                f"documents.sources[{source.name}].path = {source.path}: no such file or "
                "directory, and no file matches it as a glob; correct the path"
            )
    names: dict[str, Path] = {}
    for path in found:
        relative = path.relative_to(root)
        if path.suffix in COMPRESSION_SUFFIXES:
            relative = relative.with_suffix("")
        name = relative.as_posix()
        if not _is_utf8(name):
            raise InputError(
                f"{name.encode(errors='backslashreplace').decode()}: the file's name is not "
                "UTF-8, so no document key can hold it; rename the file"
            )
        if name in names:
            raise InputError(
                f"{path}: same name as {names[name]} without its compression suffix; their "
                "documents could not be told apart, rename or remove one"
            )
        names[name] = path
    return [(str(path.absolute()), name) for name, path in names.items()]


def _walk(root: Path) -> list[Path]:
    """Return every file below a directory but hidden ones; links are followed."""

    def refuse(error: OSError) -> None:
        raise InputError(
            f"{error.filename}: cannot list: {error.strerror}; give this user the right to read "
            "the folder or take it out of the source"
        ) from None

    found: list[Path] = []
    seen: dict[str, str] = {}
    for folder, folders, files in os.walk(root, followlinks=True, onerror=refuse):
        place = os.path.realpath(folder)
        if place in seen:
            raise InputError(
                f"{folder}: leads to {place}, which {seen[place]} is already; remove the link, its "
                "documents would be read twice or without end"
            )
        seen[place] = folder
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(folder, name) for name in files if not name.startswith(".")]
    return found


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # Python stands surrogates in for such bytes of a file name
        return False
    return True


def _first_pattern(parts: Sequence[str]) -> int:
    return next(
        (index for index, part in enumerate(parts) if any(mark in part for mark in "*?[")),
        len(parts) - 1,
    )


def _digest(location: str) -> tuple[int, str]:
    try:
        if not stat.S_ISREG(Path(location).stat().st_mode):  # opening a pipe would wait for ever
            raise InputError(f"{location}: not a regular file; take it out of the source")
        with open(location, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return file.tell(), digest
    except OSError as error:
        raise InputError(
            f"{location}: cannot read: {error.strerror}; give this user the right to read it "
            "or take it out of the source"
        ) from None


def plan_splits(source: SourceConfig, files: Sequence[InputFile], split_bytes: int) -> list[Split]:
    """Cut a source's files, in order, into splits of about `split_bytes` raw bytes.

    Small files share a split; large uncompressed ones are cut at the start of a document.
    """
    splits: list[Split] = []
    pending: list[FileRange] = []
    pending_bytes = 0
    for file in files:
        for part in _ranges(source, file, split_bytes):
            if pending and pending_bytes + part.end - part.start > split_bytes:
                splits.append(Split(len(splits), source.name, tuple(pending)))
                pending, pending_bytes = [], 0
            pending.append(part)
            pending_bytes += part.end - part.start
    if pending:
        splits.append(Split(len(splits), source.name, tuple(pending)))
    return splits


def _ranges(source: SourceConfig, file: InputFile, split_bytes: int) -> Iterator[FileRange]:
    divisible = (
        source.format != "python_docstrings"
        and Path(file.location).suffix not in COMPRESSION_SUFFIXES
    )
    start = 0
    while divisible and file.bytes - start > split_bytes:
        end = _next_document(source, file.location, start + split_bytes, file.bytes)
        yield FileRange(file.location, file.path, start, end)
        start = end
    if start < file.bytes:
        yield FileRange(file.location, file.path, start, file.bytes)


def _next_document(source: SourceConfig, location: str, offset: int, size: int) -> int:
    """Return where the first document at or after `offset` starts; `size` if there is none."""
    boundary = _boundary(source)
    with open(location, "rb") as file:
        # One byte back: a boundary may end exactly at `offset`.
        file.seek(offset - 1)
        base, window = offset - 1, b""
        while chunk := file.read(_SCAN_BYTES):
            window += chunk
            # Blank lines at the window's end may go on in the next: hold them back till then.
            settled = len(window)
            if boundary is _BLANK_LINES and base + len(window) < size:
                settled = len(window.rstrip(_BLANK))
            match = boundary.search(window)
            if match and match.end() <= settled:
                return base + match.end()
            base, window = base + settled, window[settled:]
    return size


def _boundary(source: SourceConfig) -> re.Pattern[bytes]:
    return _BLANK_LINES if source.format == "text" else _LINE_END


def read_split(source: SourceConfig, split: Split, report=None) -> Iterator[RawDocument]:
    """Yield the documents of a split in order.

    Raises InputError that names the file and the byte offset for bytes that are not UTF-8 and
    for lines that are not JSON.
    """
    for part in split.ranges:
        if source.format == "python_docstrings":
            text = docstrings.read_module(part.location)
            yield RawDocument(part.path, 0, text or "", "not_parsable" if text is None else "")
            continue
        data = _read_range(part)
        start = len(_BOM) if part.start == 0 and data.startswith(_BOM) else 0
        boundary = _boundary(source)
        while start < len(data):
            match = boundary.search(data, start)
            end, following = (match.start(), match.end()) if match else (len(data), len(data))
            if data[start:end].strip():
                text = _decode(data[start:end], part, start)
                if source.format == "jsonl":
                    text = _json_text(text, source, part, start)
                yield RawDocument(part.path, part.start + start, text)
            start = following


def _read_range(part: FileRange) -> bytes:
    compression = COMPRESSION_SUFFIXES.get(Path(part.location).suffix)
    try:
        with open(part.location, "rb") as file:
            if compression is None:
                file.seek(part.start)
                data = file.read(part.end - part.start)
                if len(data) < part.end - part.start:
                    raise InputError(
                        f"{part.location}: ends before byte {part.end}: it was cut short since "
                        "the job was planned; restore it and run the command again"
                    )
                return data
            with pa.CompressedInputStream(file, compression) as stream:
                output = io.BytesIO()
                while chunk := stream.read(_SCAN_BYTES):
                    output.write(chunk)
                return output.getvalue()
    except OSError as error:
        raise InputError(
            f"{part.location}: cannot read it{f' as {compression}' if compression else ''}: "
            f"{error}; repair or remove the file"
        ) from None


def _decode(data: bytes, part: FileRange, start: int) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = part.start + start + error.start
        raise InputError(
            f"{part.location}: byte offset {offset}: not UTF-8 (byte 0x{data[error.start]:02x}); "
            "convert the file to UTF-8 or take it out of the source"
        ) from None


def _json_text(line: str, source: SourceConfig, part: FileRange, start: int) -> str:
    where = f"{part.location}: byte offset {part.start + start}"
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not a JSON object: {error}; repair the line") from None
    text = record.get(source.text_field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise InputError(
            f'{where}: no string field "{source.text_field}"; set '
            f"documents.sources[{source.name}].text_field or repair the line"
        )
    return text
