"""Local files that a command needs only while it runs: where they go, and what if they cannot."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipeline.errors import StorageError


def prepare(directory: str) -> None:
    """Make a working storage ("": the system's own is used); StorageError if it takes no files."""
    if directory:
        unpacked((), directory).close()


def unpacked(chunks: Iterable[bytes], directory: str) -> IO[bytes]:
    """Write bytes to a file without a name in the working storage; return it at its start.

    The system removes it when it is closed, at a kill too. Raises StorageError if it cannot be
    written.
    """
    with _explained(directory):
        if directory:
            Path(directory).mkdir(parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(dir=directory or None)  # noqa: SIM115 - the caller closes it
    try:
        for chunk in chunks:
            # Around the writes alone: `chunks` reads another file, which has errors of its own.
            with _explained(directory):
                file.write(chunk)
        with _explained(directory):
            file.flush()
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def _explained(directory: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = directory or tempfile.gettempdir()
        raise StorageError(
            f"working_storage = {where}: cannot write there: {error.strerror or error}; name a "
            "local directory with room that this user may write, on every machine of the cluster"
        ) from error
