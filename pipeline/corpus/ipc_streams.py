"""Arrow IPC streams, one or several back to back, as `cat` and members of an archive leave them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pipeline.corpus.content import Content
from pipeline.errors import InputError


def ipc_streams(content: Content) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the record batches of each stream of a file, to be read in that order.

    Arrow takes the end of a file for the end of a stream, and looks at nothing behind a stream:
    here a stream without its end mark, and bytes behind one that are no stream, raise InputError.
    """
    with _Bytes(content) as data:
        while data.fill():
            yield _stream(data, content)


def _stream(data: _Bytes, content: Content) -> Iterator[pa.RecordBatch]:
    start = data.position
    try:
        with pa.PythonFile(data, mode="r") as file:
            yield from pa.ipc.open_stream(file)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise _failure(content, start, data.position, str(error)) from None
    if data.ran_out:
        reason = "it ends without an end-of-stream mark, so batches may be missing"
        raise _failure(content, start, data.position, reason)


def _failure(content: Content, start: int, position: int, reason: str) -> InputError:
    return InputError(
        f"{content.where(position)}: cannot read it as Arrow: the stream that begins at byte "
        f"{start} is no whole one: {reason}; repair or remove the file"
    )


class _Bytes:
    """The bytes of a file for Arrow's reader, which takes no more of them than it needs."""

    closed = False

    def __init__(self, content: Content) -> None:
        self._chunks = content.chunks()
        self._data = memoryview(b"")
        self.position = 0
        self.ran_out = False

    def __enter__(self) -> _Bytes:
        return self

    def __exit__(self, *_: object) -> None:
        self._data = memoryview(b"")

    def fill(self) -> bool:
        """Say whether there are more bytes."""
        while not self._data:
            chunk = next(self._chunks, b"")
            if not chunk:
                return False
            self._data = memoryview(chunk)
        return True

    def read(self, size: int, /) -> bytes:
        """Return `size` bytes, fewer at the end of the file only."""
        parts: list[memoryview] = []
        while size and self.fill():
            part, self._data = self._data[:size], self._data[size:]
            parts.append(part)
            size -= len(part)
            self.position += len(part)
        self.ran_out |= size > 0
        return b"".join(parts)

    def close(self) -> None:
        """Stay open: another stream may follow the one that Arrow has read."""
