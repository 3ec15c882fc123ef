"""Word counts -> WordPiece vocabulary -> tokenizer.json, the same bits on any cluster."""

from pipeline.normalization import NormalizationTable, TextRules
from pipeline.vocabulary.card import count_by_source, summary, vocabulary_card
from pipeline.vocabulary.counts import COUNTS_SCHEMA, count_words, merge_counts, split_counts
from pipeline.vocabulary.extension import extend_vocabulary
from pipeline.vocabulary.files import build_tokenizer, read_start, read_vocab, vocab_txt
from pipeline.vocabulary.layout import (
    SPECIAL_TOKENS,
    check_user_tokens,
    check_vocab_size,
    leading_entries,
    pad_entries,
    required_characters,
    special_ids,
    unused_ids,
)
from pipeline.vocabulary.tokenizer_json import wordpiece_entries
from pipeline.vocabulary.training import TrainedVocabulary, train_wordpiece

__all__ = [
    "COUNTS_SCHEMA",
    "SPECIAL_TOKENS",
    "NormalizationTable",
    "TextRules",
    "TrainedVocabulary",
    "build_tokenizer",
    "check_user_tokens",
    "check_vocab_size",
    "count_by_source",
    "count_words",
    "extend_vocabulary",
    "leading_entries",
    "merge_counts",
    "pad_entries",
    "read_start",
    "read_vocab",
    "required_characters",
    "special_ids",
    "split_counts",
    "summary",
    "train_wordpiece",
    "unused_ids",
    "vocab_txt",
    "vocabulary_card",
    "wordpiece_entries",
]
