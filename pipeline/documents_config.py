"""The [documents] table of a run's TOML: cleaning, partitions, the list of sources."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import ClassVar

import regex
from pydantic import ConfigDict

from pipeline.config_fields import STRICT, Identity, require
from pipeline.source_config import SourceConfig

# ISO 15924 codes of writing systems that are several scripts of Unicode, or a part of one.
_SEVERAL_SCRIPTS = {
    "Hans": ("Hani",),
    "Hant": ("Hani",),
    "Hrkt": ("Hira", "Kana"),
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
}


def unicode_scripts(codes: Iterable[str]) -> list[str]:
    """Return the scripts of Unicode that ISO 15924 codes stand for."""
    return [script for code in codes for script in _SEVERAL_SCRIPTS.get(code, (code,))]


def _is_script(code: str) -> bool:
    try:
        return bool(re.fullmatch(r"[A-Z][a-z]{3}", code) and regex.compile(rf"\p{{Script={code}}}"))
    except regex.error:
        return False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CleaningConfig:
    """What is changed in, or dropped from, the text of a document; every change is counted."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    normalize_nfc: Identity[bool] = True
    """Compose characters (Unicode normalization form C)."""
    remove_control: Identity[bool] = True
    """Remove control characters and U+FFFD (Devlin et al. 2019, released code)."""
    remove_zero_width: Identity[bool] = True
    """Remove soft hyphens, U+180E, U+200B, U+2060 and U+FEFF; the joiners U+200C, U+200D stay."""
    collapse_white_space: Identity[bool] = True
    """Write every run of white space inside a line as one space, and none at its ends."""
    drop_symbol_lines: Identity[bool] = False
    """Drop lines without any letter: punctuation, symbols and digits only."""
    minimum_characters: Identity[int] = 1
    """Documents with fewer characters are dropped."""
    maximum_characters: Identity[int] = 0
    """Documents with more characters are dropped; 0 keeps all."""
    scripts: Identity[tuple[str, ...]] = ()
    """ISO 15924 codes of the scripts the corpus is written in, such as "Latn"; empty: any."""
    minimum_script_share: Identity[float] = 0.5
    """Documents with a smaller share of their letters in `scripts` are dropped."""
    deduplicate: Identity[bool] = True
    """Drop documents whose cleaned text equals that of another; the smallest document key stays."""
    deduplicate_paragraphs: Identity[int] = 0
    """Drop paragraphs (lines) of at least this many characters that stand elsewhere in the corpus
    too: the one in the document of the smallest hash stays. 0 keeps all."""

    def __post_init__(self) -> None:
        for name in ("minimum_characters", "maximum_characters", "deduplicate_paragraphs"):
            value = getattr(self, name)
            lowest = int(name == "minimum_characters")
            require(
                value >= lowest, f"documents.cleaning.{name}", value, f"must be at least {lowest}"
            )
        require(
            self.maximum_characters == 0 or self.maximum_characters >= self.minimum_characters,
            "documents.cleaning.maximum_characters",
            self.maximum_characters,
            f"must be 0 or at least minimum_characters = {self.minimum_characters}",
        )
        for one in self.scripts:
            remedy = 'is no script of Unicode; write ISO 15924 codes such as "Latn" or "Cyrl"'
            known = all(map(_is_script, unicode_scripts([one])))
            require(known, "documents.cleaning.scripts", one, remedy)
        require(
            0.0 <= self.minimum_script_share <= 1.0,
            "documents.cleaning.minimum_script_share",
            self.minimum_script_share,
            "must be in [0, 1]",
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsConfig:
    """Raw files to cleaned documents of sentences."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    sources: Identity[tuple[SourceConfig, ...]] = ()
    """Sources of raw text."""
    partitions: Identity[int] = 0
    """Training partitions; 0 means one for every 64 MB of raw input."""
    held_out_fraction: Identity[float] = 0.02
    """Share of the documents kept for evaluation, chosen by document hash."""
    split_bytes: Identity[int] = 64_000_000
    """Bytes of raw input in one split, the unit of reading (grows with the corpus)."""
    language_smoothing: Identity[float] = 1.0
    """Exponent that a language's share of the corpus is raised to: below 1, languages of little
    text are repeated and others sampled (Devlin et al. 2018, multilingual BERT: 0.7). By the
    source's locale."""
    cleaning: Identity[CleaningConfig] = CleaningConfig()

    def __post_init__(self) -> None:
        require(
            0 <= self.partitions <= 100_000,
            "documents.partitions",
            self.partitions,
            "must be in [0, 100000]",
        )
        require(
            0.0 <= self.held_out_fraction < 1.0,
            "documents.held_out_fraction",
            self.held_out_fraction,
            "must be in [0, 1)",
        )
        require(
            self.split_bytes >= 1, "documents.split_bytes", self.split_bytes, "must be at least 1"
        )
        require(
            0.0 <= self.language_smoothing <= 1.0,
            "documents.language_smoothing",
            self.language_smoothing,
            "must be in [0, 1]",
        )
        names = [source.name for source in self.sources]
        require(len(set(names)) == len(names), "documents.sources", names, "names must be distinct")
