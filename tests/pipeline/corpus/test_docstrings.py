"""The embedded corpus: docstrings of modules, read without running them."""

from __future__ import annotations

import gc
import sys
import sysconfig
from pathlib import Path

import pytest

from pipeline import corpus
from pipeline.corpus.docstrings import STANDARD_LIBRARY, list_modules, read_module
from pipeline.errors import InputError
from pipeline.source_config import SourceConfig


def module(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "module.py"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_docstrings_come_in_the_order_of_the_file_a_paragraph_a_line(tmp_path: Path) -> None:
    location = module(
        tmp_path,
        '''
"""Module, first
line.

Second paragraph.
"""
raise SystemExit("never run")

class A:
    """Class A."""

    def method(self):
        """Method:
            indented
        more.
        """
        def inner():
            """Inner."""
        "no docstring"

if True:
    async def late():
        """Late."""
else:
    def other():
        """Other."""
try:
    pass
except ValueError:
    def handled():
        """Handled."""
finally:
    def last():
        """Last."""
match 1:
    case 1:
        def matched():
            """Matched."""
''',
    )
    assert read_module(location) == "\n".join(
        [
            "Module, first line.",
            "Second paragraph.",
            "Class A.",
            "Method: indented more.",
            "Inner.",
            "Late.",
            "Other.",
            "Handled.",
            "Last.",
            "Matched.",
        ]
    )


def test_a_module_without_docstrings_has_no_text(tmp_path: Path) -> None:
    assert read_module(module(tmp_path, "x = 1\n")) == ""


def test_a_lone_surrogate_in_a_literal_has_a_utf8_form(tmp_path: Path) -> None:
    text = read_module(module(tmp_path, '"""a \\ud800 b"""'))
    assert text == "a ? b"


@pytest.mark.parametrize(
    "source",
    ["def broken(:\n", b'"""\xff"""\n', b"x = 1\0\n", "(" * 500 + ")" * 500],
    ids=["syntax", "encoding", "nul", "deep"],
)
def test_a_module_that_python_cannot_parse_is_counted_not_hidden(
    tmp_path: Path, source: str | bytes
) -> None:
    location = module(tmp_path, source)
    assert read_module(location) is None
    split = corpus.Split(0, "s", (corpus.FileRange(location, "module.py", 0, 1),))
    config = SourceConfig(name="s", format="python_docstrings", path="unused")
    (document,) = corpus.read_split(config, split, corpus.ReadReport())
    assert document.dropped == "not_parsable" and document.text == ""


def test_a_module_that_vanished_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.py: cannot read the module: No such file"):
        read_module(str(tmp_path / "gone.py"))


def test_the_collector_is_left_as_it_was(tmp_path: Path) -> None:
    location = module(tmp_path, "def broken(:\n")
    assert gc.isenabled()
    read_module(location)
    assert gc.isenabled()
    gc.disable()
    try:
        read_module(location)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_lock_file_names_the_packages_read_after_the_standard_library(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(
        "# made by a tool\n"
        "pytest==8.0.0 \\\n    --hash=sha256:00\n"
        "hypothesis[cli]==6.0 ; python_version > '3'\n"
        "no-such-package-anywhere==1.0\n"
        "pytest==8.0.0\n"
    )
    modules = list_modules(str(lock))
    library = [path for _, path in modules if path.startswith(STANDARD_LIBRARY)]
    others = [path for _, path in modules if not path.startswith(STANDARD_LIBRARY)]
    assert "stdlib/json/decoder.py" in library
    assert "site-packages/_pytest/config/__init__.py" in others
    assert "site-packages/hypothesis/core.py" in others
    assert not any(path.startswith("site-packages/numpy/") for path in others)
    assert len(set(modules)) == len(modules)
    assert all(Path(location).is_file() for location, _ in modules)
    assert not any("site-packages" in path for path in library)


def test_the_standard_library_comes_first_under_a_byte_limit(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("pytest==8.0.0\n")
    config = SourceConfig(
        name="docs", format="python_docstrings", path=str(lock), limit_bytes=1_000_000
    )
    files = corpus.list_files(config, 0)
    first = [file.path.startswith(STANDARD_LIBRARY) for file in files]
    assert first == sorted(first, reverse=True)
    assert {True, False} == set(first)
    library = [file.path for file, is_first in zip(files, first, strict=True) if is_first]
    assert library != sorted(library)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot read the lock file"), ("nothing-installed==1\n", "none of its packages")],
)
def test_a_lock_file_that_names_nothing_is_refused(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    lock = tmp_path / "requirements.lock"
    if content is not None:
        lock.write_text(content)
    with pytest.raises(InputError, match=reason) as caught:
        list_modules(str(lock))
    assert str(lock) in str(caught.value)


def test_every_module_of_a_real_package_is_read_or_counted() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    texts = [read_module(str(path)) for path in sorted(library.glob("*.py"))[:40]]
    assert len(texts) == 40 and sys.version_info >= (3, 11)
    assert sum(text is None for text in texts) == 0
    assert sum(len(text or "") for text in texts) > 50_000
