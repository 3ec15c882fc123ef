"""Cleaning and sentence splitting of single texts, as the documents stage does them to many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pipeline.cleaning import clean
from pipeline.config import CleaningConfig
from pipeline.sentences import split_sentences


def clean_text(text: str, **rules: Any) -> str:
    """One document, cleaned."""
    return clean_counted(text, **rules)[0]


def clean_counted(text: str, **rules: Any) -> tuple[str, dict[str, int]]:
    """One document, cleaned, and what was counted."""
    counts: Counter[str] = Counter()
    cleaned = clean([text], CleaningConfig(**rules), counts)
    return cleaned.utf8.tobytes().decode()[:-1], dict(counts)


def sentences_of(texts: Sequence[str], locale: str = "en") -> list[list[str]]:
    """The sentences of each document, after cleaning."""
    cleaned = clean(texts, CleaningConfig(), Counter())
    found: list[list[str]] = split_sentences(cleaned, locale).as_lists().to_pylist()
    return found
