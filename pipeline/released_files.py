"""Files of released models, and what a broken download or git left in their place."""

from __future__ import annotations

import json
from typing import Any

from pipeline.errors import InputError

FETCH_AGAIN = "fetch the file again"
# How the few lines begin that stand for a large file until `git lfs pull` has fetched it.
_POINTER = b"version https://git-lfs.github.com/"


def require_no_pointer(data: bytes, uri: str) -> bytes:
    """Return a file's bytes; InputError where git left a pointer in its place."""
    if data.startswith(_POINTER):
        raise InputError(
            f"{uri}: {len(data)} bytes: a pointer of git LFS in the file's place: run `git lfs "
            "pull` in its repository"
        )
    return data


def parse_table(data: bytes, uri: str) -> dict[str, Any]:
    """Return the table that a JSON file holds; InputError, naming the file, if it holds none."""
    try:
        value = json.loads(require_no_pointer(data, uri))
    except ValueError as error:
        raise InputError(f"{uri}: not valid JSON ({error}): cut short or damaged") from None
    except RecursionError:
        raise InputError(f"{uri}: nested too deeply to be read: {FETCH_AGAIN}") from None
    if not isinstance(value, dict):
        raise InputError(f"{uri}: holds a {type(value).__name__}, must be a JSON object")
    return value
