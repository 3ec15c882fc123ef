"""One file range as a reader sees it: uncompressed bytes, text of them, and places for errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from pipeline.corpus.charset import Bytes, Charset, Decoder, choose_charset, unmarked_encoding
from pipeline.corpus.compression import (
    HEAD_BYTES,
    ByteStream,
    DecompressedStream,
    choose_compression,
)
from pipeline.corpus.report import ReadReport
from pipeline.corpus.splits import FileRange
from pipeline.corpus.streams import RawStream, is_s3, open_arrow
from pipeline.errors import InputError
from pipeline.source_config import SourceConfig
from pipeline.working_storage import unpacked

READ_BYTES = 1 << 20
# A range request costs tens of milliseconds on an object store, so fewer and larger ones.
_S3_READ_BYTES = 1 << 22


class Content:
    """The uncompressed bytes of a file range, read once from front to back."""

    def __init__(
        self,
        source: SourceConfig,
        part: FileRange,
        report: ReadReport,
        working_storage: str = "",
    ) -> None:
        self.source = source
        self.part = part
        self.report = report
        self._working_storage = working_storage
        self.location = part.location
        self.compression = ""
        raw = RawStream(part.location, part.start, part.end, part.version)
        self._stream: ByteStream = raw
        try:
            if part.start == 0:  # no other range is ever compressed
                self.compression = choose_compression(part.location, raw.peek(HEAD_BYTES))
            if self.compression:
                self._stream = DecompressedStream(raw, self.compression, part.location)
            self._chunk_bytes = _S3_READ_BYTES if is_s3(part.location) else READ_BYTES
            self.head = b""
            self._fill_head()
        except BaseException:
            raw.close()
            raise

    def _fill_head(self) -> None:
        while len(self.head) < HEAD_BYTES:
            data = self._stream.read(self._chunk_bytes)
            if not data:
                break
            self.head += data

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def charset(self) -> Charset:
        """Return the charset of the file; a range within it is in UTF-8 or as configured.

        Raises InputError for a file that seems to be in another, which it does not say.
        """
        head = self.head[:HEAD_BYTES] if self.part.start == 0 else b""
        charset = choose_charset(self.source.encoding, head)
        if self.source.encoding == "auto" and not charset.mark_bytes:
            seeming = unmarked_encoding(head)
            if seeming:
                raise InputError(
                    f"{self.where(0)}: seems to be {seeming.upper()} without a byte-order mark "
                    f"(NUL bytes in places of its kind); set documents.sources[{self.source.name}]"
                    f'.encoding to "{seeming}", or to "utf-8" if it is that all the same'
                )
        return charset

    def decoder(self) -> Decoder:
        """Return what makes text of the file's bytes by the source's policy."""
        return Decoder(self.charset(), self.source.undecodable, self.report)

    def chunks(self) -> Iterator[bytes]:
        """Yield the uncompressed bytes in pieces of 1 to 4 MiB."""
        head, self.head = self.head, b""
        if head:
            yield head
        while data := self._stream.read(self._chunk_bytes):
            yield data

    def chunks_after_mark(self, charset: Charset) -> Iterator[bytes]:
        """Yield the bytes in pieces without the byte-order mark."""
        chunks = self.chunks()
        first = next(chunks, b"")
        if len(first) > charset.mark_bytes:
            yield first[charset.mark_bytes :]
        yield from chunks

    def read_all(self) -> bytearray:
        """Return the uncompressed bytes as a whole."""
        data = bytearray()
        for chunk in self.chunks():
            data += chunk
        return data

    def where(self, offset: int) -> str:
        """Name a byte of the uncompressed file."""
        return f"{self.location}: byte offset {offset}"

    def text(self, decoder: Decoder, data: Bytes, offset: int) -> str:
        """Return the text of bytes that stand at `offset` of the uncompressed file."""
        return decoder.decode(data, lambda position: self.where(offset + position))

    def malformed(self, place: str, reason: str, remedy: str) -> None:
        """Count a record without a text, or raise InputError, by the source's policy."""
        if self.source.malformed == "fail":
            raise InputError(
                f'{place}: {reason}; {remedy}, or set the source\'s `malformed` to "skip"'
            )
        self.report.note("malformed_skipped", place, detail=reason)

    @contextmanager
    def seekable(self) -> Iterator[pa.NativeFile]:
        """Open the uncompressed file for reading at any place.

        A compressed one is unpacked into a temporary file first, so that memory stays bounded.
        """
        if not self.compression:
            with open_arrow(self.location, self.part.end, self.part.version) as file:
                yield file
            return
        with unpacked(self.chunks(), self._working_storage) as file:
            yield pa.PythonFile(file, mode="r")
