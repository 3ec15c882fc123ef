"""Keep what a training process frees for its next step."""

from __future__ import annotations

from collections.abc import Mapping

KEEP_FREED_MEMORY: Mapping[str, str] = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    # Ray Train trains in a thread, whose own heap could not hold a block of 64 MiB.
    "MALLOC_ARENA_MAX": "1",
}
"""Environment that a process must start with, for glibc to reuse freed blocks (mallopt(3)).

By default glibc maps large blocks anew each time and hands the top of its heap back, so every step
pays for the page faults of all its tensors: 60,800 in a step of BERT-Small, 16 x 128 tokens, a
fifth of its time. With these the process keeps the most it ever needed at once. Other C libraries
ignore them.
"""
