"""What BertNormalizer and BertPreTokenizer do to each code point, as flat arrays for kernels.

The tokenizers library is the definition; it is asked once, in bulk, and the answer is stored.
Both work by code point with one exception: stripping accents puts runs of combining marks in
canonical order. Code points that survive it as combining marks are flagged, so that a text in
which two of them meet can be given to the library itself.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import normalizers, pre_tokenizers

from pipeline.errors import ConfigError, CorruptError

# How a code point acts on the words around it.
JOIN, DROP, SEPARATE, ALONE = range(4)
UNITS = 4  # actions from here on: (action - UNITS) numbers a run of units
UNIT_CLASS_SHIFT = 24  # unit: code point, its class (JOIN, SEPARATE or ALONE), the mark flag
UNIT_MARK = 1 << 28
UNIT_CODE_POINT = (1 << 21) - 1
MAX_UNITS = 3  # no code point becomes more than three, nor more than three times its bytes

_CODE_POINTS = 0x110000
_BOUNDARY = "0"  # a starter that no other code point is normalised to
_LAST_MARK = "\u0345"  # canonical combining class 240, the highest
_FIRST_MARK = "\u0334"  # class 1, the lowest

_SCHEMA = pa.schema(
    [
        ("code_point", pa.uint32()),
        ("normalized", pa.large_string()),
        ("pre_token_class", pa.uint8()),
        ("combining", pa.bool_()),
    ]
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TextRules:
    """The switches of BertNormalizer; clean_text is always on (Devlin et al. 2019, A.2)."""

    lowercase: bool = True
    """Lower-case the text."""
    strip_accents: bool = True
    """Decompose the text and drop its non-spacing marks."""
    handle_chinese_chars: bool = True
    """Make each CJK ideograph a word of its own."""

    def normalizer(self) -> normalizers.BertNormalizer:
        """Return the tokenizers library's normaliser of these rules."""
        return normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.handle_chinese_chars,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )

    @classmethod
    def from_normalizer(cls, normalizer: dict[str, Any] | None) -> Self:
        """Read the rules from the `normalizer` object of a tokenizer.json.

        Raises ConfigError where it is not a BertNormalizer that cleans text.
        """
        if normalizer is None or normalizer.get("type") != "BertNormalizer":
            kind = None if normalizer is None else normalizer.get("type")
            raise ConfigError(f"tokenizer.json: normalizer {kind}: must be BertNormalizer")
        if not normalizer["clean_text"]:
            raise ConfigError("tokenizer.json: normalizer.clean_text = false: must be true")
        strip_accents = normalizer["strip_accents"]
        return cls(
            lowercase=normalizer["lowercase"],
            strip_accents=normalizer["lowercase"] if strip_accents is None else strip_accents,
            handle_chinese_chars=normalizer["handle_chinese_chars"],
        )


# Languages whose non-spacing marks are vowels, voicing or tones, and Korean, whose syllables
# decomposition takes apart.
_SPELT_WITH_MARKS = frozenset(
    {"as", "bn", "bo", "gu", "hi", "ja", "km", "kn", "ko", "lo", "ml", "mr", "my", "ne", "or"}
    | {"pa", "sa", "si", "ta", "te", "th", "vi"}
)


def accent_warnings(rules: TextRules, languages: Iterable[str]) -> list[str]:
    """Return a line for each language whose spelling `strip_accents` changes (ISO 639 codes)."""
    harmed = sorted(_SPELT_WITH_MARKS & set(languages)) if rules.strip_accents else []
    return [
        f"vocabulary.strip_accents = true removes marks that spell words in language {language!r}"
        " (or takes its syllables apart); set it to false"
        for language in harmed
    ]


class KernelArrays(NamedTuple):
    """The table as the kernels read it."""

    ascii: NDArray[np.uint16]
    """[256]: action << 8 | byte to append, for one-byte characters; UNITS << 8 for the rest."""
    actions: NDArray[np.int32]
    """[0x110000]: JOIN, DROP, SEPARATE, ALONE, or UNITS + run number, by code point."""
    unit_starts: NDArray[np.int32]
    """[runs + 1]: where each run of units begins."""
    units: NDArray[np.uint32]
    """Code point, class and mark flag of each output code point of a run."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NormalizationTable:
    """What one set of rules does to every code point of Unicode."""

    rules: TextRules
    rows: pa.Table
    """The code points that are not simply kept and joined to their neighbours."""
    arrays: KernelArrays

    @classmethod
    def build(cls, rules: TextRules) -> Self:
        """Ask the tokenizers library about every code point, in four calls (about 1.5 s)."""
        code_points = _assignable_code_points()
        characters = [chr(code_point) for code_point in code_points]
        normalized = _normalize_each(rules, characters)
        if max(map(len, normalized)) > MAX_UNITS:
            raise ConfigError(
                f"tokenizers: a code point becomes more than {MAX_UNITS}:"
                " this version of the library is not supported"
            )
        classes = _pre_token_classes(characters)
        combining = np.zeros(len(characters), np.bool_)
        if rules.strip_accents:
            marks = _combining_marks(characters)
            combining = np.array([not marks.isdisjoint(text) for text in normalized])
        kept = np.array([a != b for a, b in zip(characters, normalized, strict=True)])
        kept |= (classes != JOIN) | combining
        rows = pa.table(
            [
                pa.array(code_points[kept]),
                pa.array(normalized, pa.large_string()).filter(pa.array(kept)),
                pa.array(classes[kept]),
                pa.array(combining[kept]),
            ],
            schema=_SCHEMA,
        )
        return cls(rules=rules, rows=rows, arrays=_kernel_arrays(rows))

    def to_table(self) -> pa.Table:
        """Return the rows as an Arrow table that carries the rules in its metadata."""
        rules = json.dumps(dataclasses.asdict(self.rules), sort_keys=True)
        return self.rows.replace_schema_metadata({"text_rules": rules})

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Read what `to_table` gave; raises CorruptError for any other table."""
        metadata = table.schema.metadata or {}
        if table.schema.remove_metadata() != _SCHEMA or b"text_rules" not in metadata:
            raise CorruptError(
                f"normalization table: schema {table.schema.names}: not a normalization table;"
                " run the vocabulary stage again"
            )
        rules = TextRules(**json.loads(metadata[b"text_rules"]))
        rows = table.replace_schema_metadata(None)
        return cls(rules=rules, rows=rows, arrays=_kernel_arrays(rows))


def _assignable_code_points() -> NDArray[np.uint32]:
    # Planes 4 to 13 hold no character in any version of Unicode and are kept as they are.
    points = np.arange(_CODE_POINTS, dtype=np.uint32)
    surrogate = (points >= 0xD800) & (points < 0xE000)
    unassigned_plane = (points >= 0x40000) & (points < 0xE0000)
    return points[~(surrogate | unassigned_plane)]


def _normalize_each(rules: TextRules, characters: list[str]) -> list[str]:
    pieces = rules.normalizer().normalize_str(_BOUNDARY.join(characters)).split(_BOUNDARY)
    boundary = ord(_BOUNDARY)
    pieces[boundary : boundary + 2] = [_BOUNDARY]  # the boundary itself splits into two
    if len(pieces) != len(characters):
        raise ConfigError(
            f"tokenizers: {len(characters)} code points gave {len(pieces)} normalised ones:"
            " this version of the library is not supported"
        )
    return pieces


def _pre_token_classes(characters: list[str]) -> NDArray[np.uint8]:
    joined = "a" + "a".join(characters) + "a"
    classes = np.full(len(joined), SEPARATE, np.uint8)
    for text, (start, end) in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(joined):
        classes[start:end] = ALONE if len(text) == 1 and text != "a" else JOIN
    return classes[1::2]


def _combining_marks(characters: list[str]) -> set[str]:
    """Characters that change places with a mark of the highest or of the lowest class."""
    nfd = normalizers.NFD()
    before = nfd.normalize_str(_BOUNDARY.join(_LAST_MARK + c for c in characters))
    after = nfd.normalize_str(_BOUNDARY.join(c + _FIRST_MARK for c in characters))
    marks = {_FIRST_MARK, _LAST_MARK}
    for sandwich, outer, place in (before, _LAST_MARK, -1), (after, _FIRST_MARK, 0):
        for text in sandwich.split(_BOUNDARY):
            if len(text) == 2 and text[place] == outer:
                marks.add(text[-1 - place])
    return marks


def _kernel_arrays(rows: pa.Table) -> KernelArrays:
    code_points = rows["code_point"].to_numpy()
    class_of = np.zeros(_CODE_POINTS, np.uint8)
    class_of[code_points] = rows["pre_token_class"].to_numpy()
    normalized = rows["normalized"].combine_chunks()
    lengths = pc.utf8_length(normalized).to_numpy()
    starts = np.concatenate(([0], np.cumsum(lengths)))
    text = "".join(normalized.to_pylist()).encode("utf-32-le")
    output = np.frombuffer(text, np.uint32)
    output_class = class_of[output]

    padded = np.concatenate((output, [0, 0, 0]))
    padded_class = np.concatenate((output_class, [0, 0, 0]))
    first, middle = starts[:-1], starts[:-1] + 1
    separates = (lengths == 1) & (padded_class[first] == SEPARATE)
    stays = (lengths == 1) & (padded[first] == code_points)
    spaced = (lengths == 3) & (padded[middle] == code_points)
    spaced &= (padded_class[first] == SEPARATE) & (padded_class[first + 2] == SEPARATE)
    marks = np.zeros(_CODE_POINTS, np.bool_)
    combining = rows["combining"].to_numpy()
    marks[code_points] = combining
    alone = ((stays & (padded_class[first] == ALONE)) | spaced) & ~combining
    simple = separates | alone | (lengths == 0)

    actions = np.zeros(_CODE_POINTS, np.int32)
    actions[code_points[separates]] = SEPARATE
    actions[code_points[alone]] = ALONE
    actions[code_points[lengths == 0]] = DROP
    actions[code_points[~simple]] = UNITS + np.arange(np.count_nonzero(~simple))
    in_run = np.repeat(~simple, lengths)
    unit_starts = np.concatenate(([0], np.cumsum(lengths[~simple]))).astype(np.int32)
    units = output[in_run] | (output_class[in_run].astype(np.uint32) << UNIT_CLASS_SHIFT)
    units[marks[output[in_run]]] |= UNIT_MARK

    ascii_actions = np.full(256, UNITS << 8, np.uint16)
    for byte in range(128):
        action, target = int(actions[byte]), byte
        if action >= UNITS:  # lower case: one unit that joins
            target = int(units[unit_starts[action - UNITS]]) & UNIT_CODE_POINT
            action = JOIN
        ascii_actions[byte] = action << 8 | target
    arrays = KernelArrays(ascii_actions, actions, unit_starts, units)
    for array in arrays:
        array.flags.writeable = False
    return arrays
