"""A small corpus of real English: docstrings of a fixed list of standard library modules.

The same files for every test of one Python version; no random draw is needed.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

MODULES = (
    "argparse", "ast", "bdb", "calendar", "cmd", "codecs", "collections", "configparser",
    "contextlib", "csv", "dataclasses", "datetime", "decimal", "difflib", "dis", "doctest",
    "email.message", "enum", "fractions", "ftplib", "functools", "gettext", "gzip", "heapq",
    "http.client", "http.cookiejar", "imaplib", "inspect", "ipaddress", "json.decoder", "locale",
    "logging", "logging.config", "logging.handlers", "mailbox", "mimetypes", "numbers",
    "optparse", "os", "pathlib", "pdb", "pickle", "pickletools", "platform", "poplib", "pprint",
    "profile", "pstats", "random", "sched", "selectors", "shelve", "shlex", "shutil", "smtplib",
    "socket", "socketserver", "statistics", "string", "subprocess", "symtable", "tarfile",
    "tempfile", "textwrap", "threading", "timeit", "trace", "traceback", "turtle",
    "types", "typing", "unittest.case", "unittest.mock", "urllib.parse", "urllib.request",
    "urllib.robotparser", "uuid", "warnings", "weakref", "xmlrpc.client", "zipfile",
)  # fmt: skip
TEXT_FILES = 8
JSONL_FILES = 6
SPLIT_BYTES = 16_000
# So many copies of the same documents keep a reader busy for seconds and add nothing to the
# corpus: all but one are dropped as duplicates.
REPEATED_FILES = 2
REPEATED_BYTES = 1_500_000
_DOCUMENT_CHARACTERS = 500
_PARAGRAPHS = re.compile(r"\n\s*\n")


def documents() -> list[str]:
    """Documents of several sentences each, without blank lines."""
    found = []
    for module in MODULES:
        gathered = ""
        for text in _docstrings(module):
            gathered = f"{gathered}\n{text}".strip()
            if len(gathered) >= _DOCUMENT_CHARACTERS:
                found.append(gathered)
                gathered = ""
    return found


def _docstrings(module: str) -> Iterator[str]:
    library = Path(sysconfig.get_path("stdlib"))
    stem = library / module.replace(".", "/")
    path = stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield _PARAGRAPHS.sub("\n", text)


def write_corpus(folder: Path, *, reverse: bool = False) -> Path:
    """Write texts/*.txt and articles/*.jsonl(.gz); `reverse` creates the files last name first."""
    files: dict[str, bytes] = {}
    every = documents()
    half = len(every) // 2
    for number in range(TEXT_FILES):
        text = "\n\n".join(every[number:half:TEXT_FILES])
        files[f"texts/part-{number:02}.txt"] = f"{text}\n".encode()
    for number in range(JSONL_FILES):
        lines = [json.dumps({"body": one}) for one in every[half + number :: JSONL_FILES]]
        files[f"articles/part-{number:02}.jsonl"] = "".join(f"{one}\n" for one in lines).encode()
    # Last in path order, so that they are read when all others are done.
    for number in range(REPEATED_FILES):
        block = "".join(f"{json.dumps({'body': one})}\n" for one in every[number : number + 10])
        data = block.encode() * (REPEATED_BYTES // len(block))
        packed = gzip.compress(data, compresslevel=9, mtime=0)
        files[f"articles/repeated-{number}.jsonl.gz"] = packed
    for name, data in sorted(files.items(), reverse=reverse):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder
