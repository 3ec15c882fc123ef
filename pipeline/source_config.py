"""A source of raw text in a run's TOML: what is read, and by which rules."""

from __future__ import annotations

import codecs
import dataclasses
import re
from typing import ClassVar, Literal

from pydantic import ConfigDict

from pipeline.config_fields import STRICT, Identity, Operational, require

Undecodable = Literal["fail", "replace", "skip"]
Malformed = Literal["fail", "skip"]


_WHITE_SPACE = "\n \t\r\f\v"
# Python's codecs for other ends than to store text: they raise, or read text as escapes.
_NO_CHARSETS = ("idna", "mbcs", "oem", "punycode", "raw-unicode-escape", "undefined")


def is_encoding(name: str) -> bool:
    """Say whether Python has a codec of that name for text whose lines can be found in its bytes.

    So white space has to take the same bytes everywhere, as it does but in UTF-7.
    """
    try:
        if codecs.lookup(name).name in _NO_CHARSETS:
            return False
        encoded = [one.encode(name) for one in _WHITE_SPACE]
        text = "".join(str(one, name) for one in encoded)
    except (LookupError, ValueError):  # of which UnicodeError is one
        return False
    return text == _WHITE_SPACE and len({len(one) for one in encoded}) == 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """One source of raw text."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: Identity[str]
    """Name of the source; part of every document key."""
    format: Identity[
        Literal[
            "auto",
            "text",
            "lines",
            "file",
            "jsonl",
            "parquet",
            "arrow",
            "warc",
            "wet",
            "mediawiki",
            "python_docstrings",
        ]
    ] = "auto"
    """auto: by each file's magic bytes, then its name (.txt, .jsonl, .parquet, ...); text: blank
    lines (empty or ASCII white space) end documents; lines: one document a line; file: one
    document a file; jsonl: one JSON object a line (lines end at LF or CR LF only); parquet,
    arrow: one document a row; warc: main text of the HTML responses; wet: text of the
    conversion records; mediawiki: pages of an XML dump; python_docstrings: docstrings of the
    installed Python packages, one document a module."""
    path: Operational[str]
    """File, directory, glob, "@" and a list file (one path a line), or s3:// object, prefix or
    glob. Below a directory every file is read, whatever its name, and links are followed, but none
    to what is read already; hidden and temporary ones (.*, _*, *~, *.tmp, *.part, *.crc, *.lock)
    are left out and counted. For python_docstrings: the pip lock file that names the packages to
    read after the standard library."""
    text_field: Identity[str] = "text"
    """Field of a JSON object, or column of a table, that holds the text; dots lead into nested
    ones (meta.body)."""
    id_field: Identity[str] = ""
    """Field or column that identifies a document in its file and takes the place of its offset in
    the document key (jsonl, parquet, arrow); empty: none."""
    encoding: Identity[str] = "auto"
    """auto: UTF-8 unless a byte-order mark says UTF-16 or UTF-32; or any name that Python's codecs
    know."""
    undecodable: Identity[Undecodable] = "fail"
    """Bytes that are no text: fail; replace: U+FFFD for them; skip: they vanish. Counted. For warc
    a page is such only if neither HTTP's charset nor its own nor UTF-8 fits it."""
    malformed: Identity[Malformed] = "fail"
    """Records without a text (no JSON object, a missing or null field, a WARC record that is
    broken or larger than 128 MiB): fail; skip: left out and counted."""
    limit_bytes: Identity[int] = 0
    """Keep the first documents, files in keyed-hash order, up to this many bytes of text;
    0 keeps all."""
    locale: Identity[str] = "en"
    """BCP 47 tag of the source's language: its sentence rules, and what smoothing goes by."""
    sentences: Identity[Literal["icu", "lines"]] = "icu"
    """icu: by ICU's rules for the locale; lines: the text has one sentence a line already."""
    weight: Identity[float] = 1.0
    """Times each training document of the source is in the corpus: 2.5 means twice, and half of
    them, drawn by hash, once more; 0.1 keeps a tenth. Held-out documents stand once at most."""

    def __post_init__(self) -> None:
        key = f"documents.sources[{self.name}]"
        require(self.name != "", "documents.sources.name", self.name, "give the source a name")
        remedy = "use letters, digits, '.', '_' and '-' only"
        require(bool(re.fullmatch(r"[A-Za-z0-9._-]+", self.name)), f"{key}.name", self.name, remedy)
        require(self.path != "", f"{key}.path", self.path, "name a file, directory or glob")
        remedy = 'write a BCP 47 tag such as "en" or "pt-BR"'
        tag = re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*", self.locale)
        require(tag is not None, f"{key}.locale", self.locale, remedy)
        require(self.limit_bytes >= 0, f"{key}.limit_bytes", self.limit_bytes, "must be >= 0")
        require(0.0 < self.weight <= 1000.0, f"{key}.weight", self.weight, "must be in (0, 1000]")
        require(self.text_field != "", f"{key}.text_field", "", "name the field of the text")
        remedy = 'name an encoding that Python knows, such as "cp1252", or leave it "auto"'
        known = self.encoding == "auto" or is_encoding(self.encoding)
        require(known, f"{key}.encoding", self.encoding, remedy)
        with_records = self.format in ("auto", "jsonl", "parquet", "arrow")
        remedy = f'format = "{self.format}" has no fields; leave it out'
        require(self.id_field == "" or with_records, f"{key}.id_field", self.id_field, remedy)
