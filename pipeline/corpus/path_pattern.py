"""Globs over the parts of a path, for S3 keys and for walks that the module glob cannot do."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase


def matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Say whether a path matches as a whole, both in the parts between their slashes.

    As in the module glob: a wildcard stays within a folder, "**" alone stands for any folders, and
    as the last part for everything below.
    """
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return len(pattern) == 1 or any(
            matches(parts[start:], pattern[1:]) for start in range(len(parts))
        )
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and matches(parts[1:], pattern[1:])
