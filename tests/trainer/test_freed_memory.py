"""A training process keeps what it frees: its next step takes no pages from the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping

import pytest

from trainer.freed_memory import KEEP_FREED_MEMORY

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")

# Blocks as large as tensors: 4 to 96 MiB, both sides of the 64 MiB heap of a thread.
_PROGRAM = """
import ctypes, resource, sys, threading

# PR_SET_THP_DISABLE: where huge pages are given unasked, a fault brings 512 pages.
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)

def step():
    blocks = [bytearray(size << 20) for size in (4, 24, 40, 96)]
    for block in blocks:
        block[::4096] = bytes(len(block) // 4096)

def run():
    step()
    step()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(5):
        step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    print((after.ru_minflt - before.ru_minflt) / 5, before.ru_maxrss, after.ru_maxrss)

if sys.argv[1] == "thread":  # as Ray Train runs a worker's training
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
else:
    run()
"""


def measured(where: str, environment: Mapping[str, str]) -> tuple[float, int, int]:
    """Return (page faults a step, highest resident KiB after two steps, and after seven)."""
    command = [sys.executable, "-c", _PROGRAM, where]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    faults, before, after = done.stdout.split()
    return float(faults), int(before), int(after)


@pytest.mark.parametrize("where", ["main", "thread"])
def test_blocks_freed_in_one_step_serve_the_next_and_resident_memory_does_not_grow(
    where: str,
) -> None:
    # A step writes to 41,984 pages.
    faults, before, after = measured(where, KEEP_FREED_MEMORY)
    assert faults < 1_000
    assert after - before < 16 << 10
    given_back, _, _ = measured(where, {})
    assert given_back > 20_000
