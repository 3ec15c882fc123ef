"""Compressed streams: which one a file is, and its bytes in bounded pieces.

Every member, stream or frame of a file is read, since tools write several back to back (pigz,
bzip2 -c a b, pzstd), and a stream that ends too early is an error, never a shorter text.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Protocol

from backports import zstd

from pipeline.errors import InputError

COMPRESSION_SUFFIXES = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": "xz"}
HEAD_BYTES = 64
"""Bytes of a file's beginning that say how it is compressed."""

# bzip2 alone starts with ASCII ("BZh9"), so its first block's magic (or, of an empty stream, its
# end's) has to follow; the other magics are no UTF-8 and thus the start of no text.
_BZIP2_BLOCKS = (b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90")
# A file may begin with a skippable frame (pzstd writes such): 0x184D2A50 to 0x184D2A5F.
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
_READ_BYTES = 1 << 20
_WINDOW_LOG = zstd.DecompressionParameter.window_log_max
# Zero bytes may follow a stream: tapes pad gzip so, and xz allows it by its definition.
_PADDED = ("gzip", "xz")


class ByteStream(Protocol):
    """What can be read from front to back."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, b"" at the end only."""

    def close(self) -> None:
        """Give back what the stream holds."""


def compression_of_name(name: str) -> str:
    """Return the compression that a file's suffix promises, "" for none."""
    return COMPRESSION_SUFFIXES.get(PurePosixPath(name).suffix, "")


def without_suffix(name: str) -> str:
    """Return a '/'-separated name without its compression suffix."""
    suffix = PurePosixPath(name).suffix
    return name.removesuffix(suffix) if suffix in COMPRESSION_SUFFIXES else name


def compression_of_bytes(head: bytes) -> str:
    """Return the compression whose magic bytes a file begins with, "" for none."""
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if head.startswith(b"\xfd7zXZ\x00"):
        return "xz"
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return "zstd"
    if head[1:4] == _ZSTD_SKIPPABLE and head[:1] >= b"\x50" and head[:1] <= b"\x5f":
        return "zstd"
    if head.startswith(b"BZh") and head[3:4].isdigit() and head[4:10] in _BZIP2_BLOCKS:
        return "bz2"
    return ""


def choose_compression(location: str, head: bytes) -> str:
    """Return a file's compression: what its magic bytes say, whatever its name.

    Raises InputError for a compressed name over bytes of no compression that is known.
    """
    named, found = compression_of_name(location), compression_of_bytes(head)
    if named and head and not found:
        raise InputError(
            f"{location}: cannot read it as {named}: its name says so, its first bytes are no "
            "compression's; repair or remove the file, or rename it if it is plain"
        )
    return found


class _Decoder(Protocol):
    """The interface that bz2, lzma and zstd decompressors share."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _GzipDecoder:
    """One gzip member, with the interface of the other decoders."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


_DECODERS: dict[str, Callable[[], _Decoder]] = {
    "gzip": _GzipDecoder,
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ),
    # The library's own limit is a window of 128 MiB; large dumps are often packed with the largest
    # (--long=31), which then takes up to 2 GiB of memory to read.
    "zstd": lambda: zstd.ZstdDecompressor(options={_WINDOW_LOG: _WINDOW_LOG.bounds()[1]}),
}


class DecompressedStream:
    """The uncompressed bytes of a compressed stream, at most 1 MiB of either kept at a time."""

    def __init__(self, stream: ByteStream, compression: str, location: str) -> None:
        self._stream = stream
        self._compression = compression
        self._location = location
        self._decoder: _Decoder | None = None
        self._data = b""
        self._position = 0
        self._members = 0

    def read(self, size: int, /) -> bytes:
        """Return at most `size` uncompressed bytes, b"" at the end only."""
        while True:
            if self._decoder is None and not self._next_member():
                return b""
            decoder = self._decoder
            assert decoder is not None
            if decoder.needs_input and not self._data:
                self._data = self._stream.read(_READ_BYTES)
                if not self._data:
                    raise self._failure("it ends in the middle of a stream")
            data, self._data = self._data, b""
            try:
                output = decoder.decompress(data, size)
            except (OSError, zlib.error, lzma.LZMAError, zstd.ZstdError, EOFError) as error:
                raise self._failure(str(error)) from None
            if decoder.eof:
                self._data, self._decoder = decoder.unused_data, None
            if output:
                self._position += len(output)
                return output

    def _next_member(self) -> bool:
        while True:
            if self._members and self._compression in _PADDED:
                self._data = self._data.lstrip(b"\0")
            if self._data:
                break
            self._data = self._stream.read(_READ_BYTES)
            if not self._data:
                return False
        self._members += 1
        self._decoder = _DECODERS[self._compression]()
        return True

    def _failure(self, reason: str) -> InputError:
        return InputError(
            f"{self._location}: cannot read it as {self._compression}: {reason}, after byte "
            f"offset {self._position} of the uncompressed data; repair or remove the file"
        )

    def close(self) -> None:
        """Close the compressed stream."""
        self._stream.close()
