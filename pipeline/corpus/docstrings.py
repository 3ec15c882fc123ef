"""The embedded corpus: docstrings of the installed Python packages, one document a module."""

from __future__ import annotations

import ast
import gc
import importlib.metadata
import inspect
import re
import sysconfig
import warnings
from pathlib import Path

from pipeline.errors import InputError

STANDARD_LIBRARY = "stdlib/"
_PACKAGES = "site-packages/"
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*==")
_PARAGRAPHS = re.compile(r"\n\s*\n")


def list_modules(lock_file: str) -> list[tuple[str, str]]:
    """Return (location, path) of every module of the standard library and the lock file's packages.

    Raises InputError if the lock file does not exist or names no installed package.
    """
    try:
        text = Path(lock_file).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{lock_file}: cannot read the lock file: {error.strerror}; name a file of pinned "
            "requirements"
        ) from None
    library = Path(sysconfig.get_path("stdlib"))
    modules = [
        (str(path), STANDARD_LIBRARY + path.relative_to(library).as_posix())
        for path in library.rglob("*.py")
        if "site-packages" not in path.parts
    ]
    installed = 0
    for line in text.split("\n"):
        match = _REQUIREMENT.match(line)
        if match:
            files = _package_modules(match[1])
            installed += bool(files)
            modules.extend(files)
    if not installed:
        raise InputError(f"{lock_file}: none of its packages is installed here; install it first")
    # A file that two packages record is one module: equal document keys would erase each other.
    return list(dict.fromkeys(modules))


def _package_modules(name: str) -> list[tuple[str, str]]:
    try:
        # The lock file also names packages of other platforms, which are not installed here.
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    located = [
        (str(file.locate()), _PACKAGES + file.as_posix())
        for file in files
        if file.suffix == ".py" and ".." not in file.parts
    ]
    # Some wheels record files that they do not install (ray's colorama tests).
    return [(location, path) for location, path in located if Path(location).is_file()]


def read_module(location: str) -> str | None:
    """Return a module's docstrings, a paragraph a line; None where Python cannot parse it."""
    # Without collection, parsing allocates a third faster (measured); its trees have no cycles.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(Path(location).read_bytes())
        return "\n".join(_docstrings(tree))
    except (SyntaxError, ValueError, RecursionError):
        return None
    except OSError as error:
        raise InputError(
            f"{location}: cannot read the module: {error.strerror}; the packages changed since "
            "the job was planned, run the command again"
        ) from None
    finally:
        if collecting:
            gc.enable()


def _docstrings(tree: ast.Module) -> list[str]:
    lines: list[str] = []
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                lines.extend(_paragraphs(inspect.cleandoc(text)))
        # Only statements can hold definitions: expressions, most of a tree, are passed over.
        for field in ("cases", "finalbody", "orelse", "handlers", "body"):
            stack.extend(
                child
                for child in reversed(getattr(node, field, ()))
                if hasattr(child, "body") or isinstance(child, ast.Match)
            )
    return lines


def _paragraphs(text: str) -> list[str]:
    # Docstrings are wrapped by hand: a paragraph ends at an empty line, not at a line break.
    # A lone surrogate (as in "\\ud800") has no UTF-8 form.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return [" ".join(block.split()) for block in _PARAGRAPHS.split(text) if block.strip()]
