"""Word counts -> WordPiece vocabulary -> tokenizer.json, the same bits on any cluster."""

from pipeline.normalization import NormalizationTable, TextRules
from pipeline.vocabulary.counts import count_words, merge_counts, split_counts
from pipeline.vocabulary.files import (
    SPECIAL_TOKENS,
    build_tokenizer,
    read_vocab,
    vocab_txt,
)
from pipeline.vocabulary.training import train_wordpiece

__all__ = [
    "SPECIAL_TOKENS",
    "NormalizationTable",
    "TextRules",
    "build_tokenizer",
    "count_words",
    "merge_counts",
    "read_vocab",
    "split_counts",
    "train_wordpiece",
    "vocab_txt",
]
