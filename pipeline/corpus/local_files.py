"""Local files of a source: a file, a directory, a glob, or a list file's lines."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from pipeline.corpus.left_out import is_kept
from pipeline.corpus.path_pattern import matches
from pipeline.corpus.report import ReadReport
from pipeline.corpus.s3 import Located, locate_object
from pipeline.corpus.streams import is_s3
from pipeline.errors import InputError
from pipeline.source_config import SourceConfig


def list_local(source: SourceConfig, report: ReadReport) -> list[Located]:
    """Return the files of a local path; hidden and temporary ones are counted and left out.

    Raises InputError if there are none, if a folder cannot be listed, or if links lead to a folder
    or file twice.
    """
    root = _expanded(source.path, f"documents.sources[{source.name}].path = {source.path[:200]}")
    if root.is_dir():
        found = _Walk(report).files(root)
    elif os.path.lexists(root):
        found, root = [root], root.parent
    else:
        found, root = _glob(root, report)
        if not found:
            raise InputError(
                f"documents.sources[{source.name}].path = {source.path}: no such file or "
                "directory, and no file matches it as a glob; correct the path"
            )
    _check_once(found)
    return [Located(str(path.absolute()), path.relative_to(root).as_posix()) for path in found]


def _expanded(name: str, place: str) -> Path:
    """Return a path without "~"; InputError, which names `place`, if the system takes no such."""
    try:
        path = Path(name).expanduser()
        os.path.lexists(path)
        path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{place}: {reason}; correct the path") from None
    return path


def _glob(pattern: Path, report: ReadReport) -> tuple[list[Path], Path]:
    """Return the files that match, and the folder before the first part with a wildcard."""
    parts = pattern.parts
    first = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    root = Path(*parts[:first])
    wildcards = parts[first:]
    if "**" not in wildcards:
        names = sorted(glob.glob(str(pattern), include_hidden=True))
        found = [path for name in names if not (path := Path(name)).is_dir()]
        found = [
            path
            for path in found
            if is_kept(path.relative_to(root).parts, str(path), wildcards, report)
        ]
        return found, root
    # The module glob goes round a loop of links until the system stops it, forty folders deep.
    deep = parts.index("**")
    walk = _Walk(report, wildcards, parts[deep:])
    found = []
    for base in sorted(glob.glob(str(Path(*parts[:deep])), include_hidden=True)):
        above = Path(base).relative_to(root).parts
        if Path(base).is_dir() and is_kept(above, base, wildcards, report):
            found += walk.files(Path(base))
    return found, root


class _Walk:
    """Files below folders but hidden and temporary ones, unless a pattern means them.

    Links are followed. Raises InputError for a folder that cannot be listed or is reached twice.
    """

    def __init__(
        self,
        report: ReadReport,
        wildcards: Sequence[str] = (),
        below: Sequence[str] = ("**",),
    ) -> None:
        self._report = report
        self._wildcards = wildcards
        self._below = below
        self._seen: dict[str, str] = {}

    def files(self, root: Path) -> list[Path]:
        """Return the files below a folder whose path from there matches."""
        found: list[Path] = []
        for folder, folders, files in os.walk(root, followlinks=True, onerror=_refuse):
            place = os.path.realpath(folder)
            if place in self._seen:
                raise InputError(
                    f"{folder}: leads to {place}, which {self._seen[place]} is already; remove the "
                    "link, its documents would be read twice or without end"
                )
            self._seen[place] = folder
            folders[:] = [one for one in sorted(folders) if self._is_kept(folder, one)]
            paths = [Path(folder, one) for one in sorted(files)]
            found += [
                path
                for path in paths
                if matches(path.relative_to(root).parts, self._below)
                and self._is_kept(folder, path.name)
            ]
        return found

    def _is_kept(self, folder: str, name: str) -> bool:
        return is_kept([name], f"{folder}/{name}", self._wildcards, self._report)


def _refuse(error: OSError) -> None:
    raise InputError(
        f"{error.filename}: cannot list: {error.strerror}; give this user the right to read "
        "the folder or take it out of the source"
    ) from None


def _check_once(paths: Iterable[Path]) -> None:
    """Raise InputError if two paths are links to one file, or one is a link to the other."""
    folders: dict[Path, str] = {}
    seen: dict[str, Path] = {}
    # Links last, so that it is a link that is named.
    for path in sorted(paths, key=lambda path: path.is_symlink()):
        if path.is_symlink():
            place = os.path.realpath(path)
        else:
            if path.parent not in folders:
                folders[path.parent] = os.path.realpath(path.parent)
            place = f"{folders[path.parent]}/{path.name}"
        if place in seen:
            raise InputError(
                f"{path}: leads to {place}, which {seen[place]} does already; remove the link, its "
                "documents would be read twice"
            )
        seen[place] = path


def read_list(source: SourceConfig) -> list[Located]:
    """Return the files that a list file names, one a line, relative to the list.

    Raises InputError, which names the line, for a file that does not exist or is named twice.
    """
    key = f"documents.sources[{source.name}].path = {source.path[:200]}"
    path = _expanded(source.path[1:], key)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:  # not UTF-8, or a path with a NUL
        raise InputError(
            f"{path}: cannot read the list of files: {error}; name a UTF-8 file of paths, one a "
            "line"
        ) from None
    located: list[Located] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        name = line.removesuffix("\r")
        if not name.strip():
            continue
        place = f"{path}: line {number}"
        if is_s3(name):
            found = locate_object(name, place)
            identity = found.location
        else:
            file = (path.parent / _expanded(name, f"{place}: {name[:200]}")).absolute()
            if not file.exists():
                raise InputError(f"{place}: {name}: no such file; correct the list")
            # The name as it is written, since listed files need not share a folder.
            found = Located(str(file), PurePosixPath(name).as_posix())
            identity = os.path.realpath(file)
        if identity in seen:
            raise InputError(
                f"{place}: {name}: the same file as on line {seen[identity]}; remove one of the "
                "two, its documents would be read twice"
            )
        seen[identity] = number
        located.append(found)
    return located
