"""A small file system of a test's own, which fills up or is mounted without leave to write."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of its own in memory; skips where that takes rights this user has not."""
    folder.mkdir()
    mount = shutil.which("mount")
    options = ("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder))
    if mount is None or subprocess.run([mount, *options], capture_output=True).returncode != 0:
        pytest.skip("mounting a file system takes more rights than this user has")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
