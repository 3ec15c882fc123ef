"""Hidden and temporary files and folders: left out of a source, and counted."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.corpus.report import ReadReport

_TEMPORARY_SUFFIXES = (".tmp", ".part", "~", ".crc", ".lock")


def why_left_out(name: str) -> str:
    """Return "hidden" or "temporary" for a name that no source reads, "" for others."""
    if name.startswith("."):
        return "hidden"
    # What jobs leave beside their output (_SUCCESS, _temporary) and what is not written whole yet.
    if name.startswith("_") or name.lower().endswith(_TEMPORARY_SUFFIXES):
        return "temporary"
    return ""


def is_kept(parts: Sequence[str], place: str, pattern: Sequence[str], report: ReadReport) -> bool:
    """Say whether a path below a root, in its parts, is read, and count it if not.

    What a pattern spells out to be hidden or temporary (".cache", "_*", "*.tmp") is meant.
    """
    for part in parts:
        reason = why_left_out(part)
        if reason and not any(why_left_out(one) == reason for one in pattern):
            report.note(f"{reason}_left_out", place, detail=f"{reason}, left out")
            return False
    return True
