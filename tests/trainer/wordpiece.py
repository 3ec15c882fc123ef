"""A small vocabulary and its tokenizer, for models of `batches.VOCAB_SIZE` entries."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.normalization import TextRules
from pipeline.vocabulary import SPECIAL_TOKENS, build_tokenizer, vocab_txt
from tests.trainer.batches import VOCAB_SIZE
from trainer.convert import TokenizerSource

LETTERS = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
WORDS = ["Hello", "Paris", "hello", "paris", "école", "ecole", "中", "文", "中文", "the"]
ENTRIES = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
ENTRIES += [f"[unused{i}]" for i in range(VOCAB_SIZE - len(ENTRIES))]
TEXT = "Hello Paris, École 中文 the zoo [MASK] the end"


def make_source(
    *,
    lowercase: bool = True,
    strip_accents: bool = True,
    chinese: bool = True,
    longest_word: int = 100,
    entries: Sequence[str] = ENTRIES,
) -> TokenizerSource:
    rules = TextRules(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=chinese
    )
    tokenizer = build_tokenizer(entries, rules, max_input_chars_per_word=longest_word)
    return TokenizerSource(
        tokenizer_json=tokenizer.to_str().encode(),
        vocab_txt=vocab_txt(entries),
        lowercase=lowercase,
        strip_accents=strip_accents,
        handle_chinese_chars=chinese,
    )
