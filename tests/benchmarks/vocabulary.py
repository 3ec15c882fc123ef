"""Training a vocabulary against tokenizers' WordPieceTrainer, in CPU seconds, counting included.

Both read the same rows of text and make as many entries. The library's trainer has one thread, so
that its CPU seconds are not those of waiting threads. Files named on the command line
(`NAME=SIZE=FILE`, with the size of the vocabulary) are measured as well.
"""

from __future__ import annotations

import os

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import sys
import time

import pyarrow as pa
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipeline.normalization import NormalizationTable, TextRules
from pipeline.vocabulary import (
    SPECIAL_TOKENS,
    TrainedVocabulary,
    count_words,
    merge_counts,
    required_characters,
    train_wordpiece,
)
from pipeline.vocabulary.training import Algorithm
from tests.benchmarks._texts import english, from_file
from tests.benchmarks.harness import Case, run

_BYTES = 20_000_000
_PARTITIONS = 4
_MIN_PAIR_COUNT: dict[Algorithm, int] = {"frequency": 2, "likelihood": 20}


def cases(name: str, rows: list[str], vocab_size: int) -> list[Case]:
    """Return the cases of one text: either rule against the library's trainer."""
    megabytes = sum(len(row.encode()) for row in rows) / 1e6
    parts = [pa.array(rows[part::_PARTITIONS], pa.large_string()) for part in range(_PARTITIONS)]
    rules = TextRules()
    normalization = NormalizationTable.build(rules)

    def ours(algorithm: Algorithm) -> TrainedVocabulary:
        return train_wordpiece(
            merge_counts([count_words(part, normalization) for part in parts]),
            vocab_size=vocab_size,
            leading=SPECIAL_TOKENS,
            required=required_characters(rules),
            min_pair_count=_MIN_PAIR_COUNT[algorithm],
            alphabet_limit=1_000,
            algorithm=algorithm,
        )

    def theirs() -> Tokenizer:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = rules.normalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False
        )
        tokenizer.train_from_iterator(rows, trainer)
        return tokenizer

    entries = {algorithm: set(ours(algorithm).entries) for algorithm in _MIN_PAIR_COUNT}
    other = set(theirs().get_vocab()) - entries["frequency"]
    print(f"{name}: {len(other)} of the library's entries are not in ours")
    return [
        Case(
            f"{name}, {algorithm}, {vocab_size:,} entries",
            "MB/CPU s",
            megabytes,
            lambda algorithm=algorithm: ours(algorithm),
            "WordPieceTrainer",
            theirs,
            rounds=2,
            clock=time.process_time,
        )
        for algorithm in _MIN_PAIR_COUNT
    ]


def main(arguments: list[str]) -> None:
    """Run the cases and write runs/bench/vocabulary.json."""
    # The standard library's docstrings do not give 30,522 pieces seen 20 times.
    found = cases("English", english(_BYTES), 8_192)
    for argument in arguments:
        name, size, path = argument.split("=", 2)
        found += cases(name, from_file(path, 3 * _BYTES), int(size))
    run("vocabulary", found)


if __name__ == "__main__":
    main(sys.argv[1:])
