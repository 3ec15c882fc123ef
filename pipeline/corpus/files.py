"""Which files a source has, what names each and what identifies its bytes."""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pipeline.corpus import docstrings
from pipeline.corpus.compression import without_suffix
from pipeline.corpus.local_files import list_local, read_list
from pipeline.corpus.report import ReadReport
from pipeline.corpus.s3 import Located, list_objects
from pipeline.corpus.streams import is_s3, local_version
from pipeline.derived_keys import derive_key
from pipeline.errors import InputError
from pipeline.source_config import SourceConfig

# A file is hashed in blocks, side by side.
_HASHED_BLOCK_BYTES = 64 << 20
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a source: where it is, what names it, what identifies its bytes."""

    source: str
    location: str
    path: str
    """Below the source's root, without a compression suffix: part of every document key."""
    bytes: int
    checksum: str
    """SHA-256 of a local file, or of the SHA-256s of its 64 MiB blocks; "etag:" and the ETag of an
    S3 object, which is not read."""
    version: str
    """What shows whether the file was changed since: a local file's time of modification (ns) and
    size, an S3 object's checksum."""


def list_files(
    source: SourceConfig, seed: int, report: ReadReport | None = None
) -> list[InputFile]:
    """Return the source's files with their checksums, in path order.

    A source with a byte limit comes in keyed-hash order instead, so that the files a limit
    keeps are a random sample; the standard library comes before installed packages. What is left
    out, and empty files, are counted in `report` with their places.
    Raises InputError if there are none, or if one cannot be read.
    """
    report = ReadReport() if report is None else report
    if source.format == "python_docstrings":
        located = [Located(place, name) for place, name in docstrings.list_modules(source.path)]
    elif source.path.startswith("@"):
        located = read_list(source)
    elif is_s3(source.path):
        located = list_objects(source, report)
    else:
        located = list_local(source, report)
    named = _named(located)
    if not named:
        raise InputError(
            f"documents.sources[{source.name}].path = {source.path}: no files; check the path"
        )
    with ThreadPoolExecutor(4) as pool:
        files = list(pool.map(lambda item: _input_file(source, *item), named.items()))
    if sum(file.bytes for file in files) == 0:
        raise InputError(
            f"documents.sources[{source.name}].path = {source.path}: "
            f"{len(files)} files, all empty; give it text"
        )
    for file in files:
        if file.bytes == 0:
            report.note("empty_files", f"{file.location}: byte offset 0", detail="an empty file")
    if source.limit_bytes:
        key = derive_key(seed, "corpus").to_bytes(8, "little")

        def order(file: InputFile) -> tuple[bool, bytes, str]:
            digest = hashlib.blake2b(file.path.encode(), digest_size=16, key=key).digest()
            return (not file.path.startswith(docstrings.STANDARD_LIBRARY), digest, file.path)

        return sorted(files, key=order)
    return sorted(files, key=lambda file: file.path)


def _named(located: Iterable[Located]) -> dict[str, Located]:
    """Return the files by the path of their document keys; InputError if two share one."""
    names: dict[str, Located] = {}
    for one in located:
        name = without_suffix(one.path)
        if not _is_utf8(name):
            raise InputError(
                f"{name.encode(errors='backslashreplace').decode()}: the file's name is not "
                "UTF-8, so no document key can hold it; rename the file"
            )
        if name in names:
            raise InputError(
                f"{one.location}: same name as {names[name].location} without its compression "
                "suffix; their documents could not be told apart, rename or remove one"
            )
        names[name] = one
    return names


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # Python stands surrogates in for such bytes of a file name
        return False
    return True


def _input_file(source: SourceConfig, path: str, one: Located) -> InputFile:
    if one.checksum:
        return InputFile(source.name, one.location, path, one.bytes, one.checksum, one.checksum)
    size, checksum, version = _digest(one.location)
    return InputFile(source.name, one.location, path, size, checksum, version)


def _digest(location: str) -> tuple[int, str, str]:
    """Return a file's size, checksum and version."""
    try:
        if not stat.S_ISREG(Path(location).stat().st_mode):  # opening a pipe would wait for ever
            raise InputError(f"{location}: not a regular file; take it out of the source")
        with open(location, "rb") as file:
            version = local_version(os.fstat(file.fileno()))
            size = os.fstat(file.fileno()).st_size
            digest = _checksum(file.fileno(), size)
        if local_version(Path(location).stat()) != version:
            raise InputError(
                f"{location}: changes while it is read, at byte offset {size} or before; run the "
                "command again when it is written, or take it out of the source"
            )
        return size, digest, version
    except OSError as error:
        raise InputError(
            f"{location}: cannot read: {error.strerror}; give this user the right to read it "
            "or take it out of the source"
        ) from None


def _checksum(file: int, size: int) -> str:
    """Return the SHA-256 of a file, of its blocks' SHA-256s where it has more than one.

    By block, because a job of one large file waits for this on all cores, not on one.
    """
    starts = range(0, size, _HASHED_BLOCK_BYTES)
    if len(starts) <= 1:
        return _block_digest(file, 0).hex()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        digests = pool.map(functools.partial(_block_digest, file), starts)
        return hashlib.sha256(b"".join(digests)).hexdigest()


def _block_digest(file: int, start: int) -> bytes:
    digest = hashlib.sha256()
    end = start + _HASHED_BLOCK_BYTES
    while start < end and (data := os.pread(file, min(_READ_BYTES, end - start), start)):
        digest.update(data)
        start += len(data)
    return digest.digest()
