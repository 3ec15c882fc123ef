"""The [vocabulary] table of a run's TOML."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from pydantic import ConfigDict

from pipeline.config_fields import STRICT, Identity, Operational, require

MOST_ENTRIES = 1 << 24
"""Far beyond any vocabulary there is; torch fails on what is much larger."""
_FREQUENCY_MIN_PAIR_COUNT = 2  # that of BERT's successors trained with the tokenizers library


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyConfig:
    """Documents to a WordPiece vocabulary."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    vocab_size: Identity[int] = 30_522
    """Entries, special tokens included: exactly so many, or an error names the most possible."""
    algorithm: Identity[Literal["frequency", "likelihood"]] = "frequency"
    """Which pair of pieces is merged next: the most frequent one, or that of the highest
    count(ab) / (count(a) count(b)), which asks for min_pair_count."""
    min_pair_count: Identity[int] = 0
    """Pairs of pieces seen less often are never merged; 0: 2 with frequency, while likelihood
    needs a number (it favours rare pairs: see the vocabulary's page in the documentation)."""
    layout: Identity[Literal["compact", "bert"]] = "compact"
    """Ids of the special tokens: compact: 0 to 4; bert: [PAD] 0, [unused0] to [unused98],
    [UNK] 100, [CLS] 101, [SEP] 102, [MASK] 103, as in the released vocabularies."""
    user_tokens: Identity[tuple[str, ...]] = ()
    """Words, or ## and the rest of one, that must have an entry, spelt as they are after
    normalisation."""
    start_from: Operational[str] = ""
    """vocab.txt to continue from, a path or s3:// object: its entries keep their ids. Its
    checksum is in the fingerprint. A tokenizer.json with a WordPiece vocabulary is read as the
    vocab.txt it stands for. See training.start_from for the weights."""
    new_entries: Identity[int] = 0
    """With start_from: the most useful entries to add; they take the [unused] ids first. 0: the
    vocabulary stays as it is."""
    pad_to_multiple_of: Identity[int] = 1
    """Add [unused] entries beyond vocab_size up to a multiple of this (64 suits tensor cores)."""
    lowercase: Identity[bool] = True
    """Lower-case the text (uncased)."""
    strip_accents: Identity[bool] = True
    """Remove accents; independent of lowercase."""
    handle_chinese_chars: Identity[bool] = True
    """Set CJK characters apart as words of their own."""
    alphabet_limit: Identity[int] = 1_000
    """Most frequent characters that get an entry; printable ASCII always does."""
    alphabet_coverage: Identity[float] = 1.0
    """Share of the text's characters that the alphabet covers if its limit lets it; the rarest
    are left out."""
    max_input_chars_per_word: Identity[int] = 100
    """Longer words become [UNK] (Devlin et al. 2019, released code: 200; tokenizers: 100)."""

    def __post_init__(self) -> None:
        require(
            64 <= self.vocab_size <= MOST_ENTRIES,
            "vocabulary.vocab_size",
            self.vocab_size,
            f"must be in [64, {MOST_ENTRIES}]",
        )
        for name in ("alphabet_limit", "max_input_chars_per_word"):
            value = getattr(self, name)
            require(value >= 1, f"vocabulary.{name}", value, "must be at least 1")
        remedy = "must be at least 0"
        require(self.min_pair_count >= 0, "vocabulary.min_pair_count", self.min_pair_count, remedy)
        require(
            self.algorithm == "frequency" or self.min_pair_count > 0,
            "vocabulary.min_pair_count",
            self.min_pair_count,
            'algorithm = "likelihood" needs one: rare pairs win otherwise; try 50',
        )
        require(
            0.0 < self.alphabet_coverage <= 1.0,
            "vocabulary.alphabet_coverage",
            self.alphabet_coverage,
            "must be in (0, 1]",
        )
        require(
            1 <= self.pad_to_multiple_of <= 65_536,
            "vocabulary.pad_to_multiple_of",
            self.pad_to_multiple_of,
            "must be in [1, 65536]",
        )
        tokens = list(self.user_tokens)
        require(
            len(set(tokens)) == len(tokens), "vocabulary.user_tokens", tokens, "must be distinct"
        )
        self._check_start()

    def _check_start(self) -> None:
        """Check the keys that belong to start_from, with it and without it."""
        require(
            self.new_entries >= 0 if self.start_from else self.new_entries == 0,
            "vocabulary.new_entries",
            self.new_entries,
            "must be at least 0" if self.start_from else "belongs to start_from; set both",
        )
        require(
            not self.start_from or self.algorithm == "frequency",
            "vocabulary.algorithm",
            self.algorithm,
            'start_from continues by frequency; write "frequency"',
        )
        require(
            not self.start_from or self.layout == "compact",
            "vocabulary.layout",
            self.layout,
            "with start_from the ids are those of its file; leave it out",
        )

    @property
    def least_pair_count(self) -> int:
        """The `min_pair_count` in force."""
        return self.min_pair_count or _FREQUENCY_MIN_PAIR_COUNT
