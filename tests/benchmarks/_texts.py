"""Texts for the benchmarks of vocabulary and encoding: real ones, or made where there are none."""

from __future__ import annotations

import ast
import itertools
import random
import sysconfig
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

# First and last letters of the alphabets that "mixed" text is made of.
_ALPHABETS = (
    ("a", "z"),
    ("\u00e0", "\u00f6"),
    ("\u03b1", "\u03c9"),
    ("\u0430", "\u044f"),
    ("\u05d0", "\u05ea"),
    ("\u0627", "\u064a"),
    ("\u0904", "\u0939"),
    ("\u0e01", "\u0e2e"),
    ("\u3042", "\u3093"),
    ("\u4e00", "\u5000"),
    ("\uac00", "\uac80"),
)


def docstrings() -> list[str]:
    """Return the docstrings of the standard library, module by module."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue  # the standard library's own tests hold files that must not parse
        for node in ast.walk(tree):
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                found.append(text)
    return found


def english(size: int) -> list[str]:
    """Return docstrings again and again, each with a number, up to `size` bytes."""
    return _up_to((f"{text} {n}" for n, text in enumerate(itertools.cycle(docstrings()))), size)


def chinese(size: int) -> list[str]:
    """Return made sentences of 3,500 ideographs, by Zipf's law, with full-width punctuation."""
    ideographs = [chr(0x4E00 + 5 * number) for number in range(3500)]
    return _up_to(_sentences(ideographs, "", "\u3002", seed=1), size)


def mixed(size: int) -> list[str]:
    """Return made sentences of 30,000 words of eleven scripts, by Zipf's law."""
    draws = random.Random(2)
    words = []
    for _ in range(30_000):
        first, last = map(ord, draws.choice(_ALPHABETS))
        length = draws.randint(1, 9)
        words.append("".join(chr(draws.randint(first, last)) for _ in range(length)))
    return _up_to(_sentences(words, " ", ". ", seed=3), size)


def from_file(path: str, size: int) -> list[str]:
    """Return the lines of a UTF-8 file, up to `size` bytes."""
    return _up_to(Path(path).read_text(encoding="utf-8").split("\n"), size)


def _sentences(words: Sequence[str], between: str, end: str, seed: int) -> Iterable[str]:
    draws = random.Random(seed)
    weights = list(itertools.accumulate(1 / (rank + 3) for rank in range(len(words))))
    while True:
        chosen = iter(draws.choices(words, cum_weights=weights, k=120))
        sentences = [between.join(itertools.islice(chosen, 12)) for _ in range(10)]
        yield end.join(sentences) + end


def _up_to(rows: Iterable[str], size: int) -> list[str]:
    kept: list[str] = []
    total = 0
    for row in rows:
        kept.append(row)
        total += len(row.encode())
        if total >= size:
            break
    return kept
