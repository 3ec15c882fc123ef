"""WordPieceEncoder against tokenizers' encode_batch_fast on one thread.

Warm: every word is in the table. Cold: the table is empty, so the library is asked for each
distinct word. Both encode the same rows, and their ids are compared first. The texts are English
docstrings and made Chinese and mixed text; real ones are files named on the command line, with
the size of the vocabulary: `python -m tests.benchmarks.encoding NAME=SIZE=FILE`.
"""

from __future__ import annotations

import os

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import sys
import time
from functools import partial

import numpy as np
import pyarrow as pa

from pipeline.encoding import WordPieceEncoder, build_word_table
from pipeline.normalization import NormalizationTable, TextRules
from pipeline.vocabulary import SPECIAL_TOKENS, build_tokenizer, count_words, train_wordpiece
from tests.benchmarks._texts import chinese, docstrings, english, from_file, mixed
from tests.benchmarks.harness import Case, run

__all__ = ["docstrings"]

_BYTES = 8_000_000
_PEER = "tokenizers, 1 thread"


def cases(
    name: str, rows: list[str], vocab_size: int, normalization: NormalizationTable
) -> list[Case]:
    """Return the cases of one text: warm, warm with byte offsets, cold."""
    text = pa.array(rows, pa.large_string())
    megabytes = sum(len(row.encode()) for row in rows) / 1e6
    counts = count_words(text, normalization)
    entries = train_wordpiece(
        counts,
        vocab_size=vocab_size,
        leading=SPECIAL_TOKENS,
        min_pair_count=2,
        alphabet_limit=4_000,
    ).entries
    tokenizer = build_tokenizer(entries, normalization.rules)
    tokenizer.encode_special_tokens = True
    tokenizer_json = tokenizer.to_str()
    words = counts["word"].combine_chunks()
    start = time.perf_counter()
    word_table = build_word_table(tokenizer_json, words)
    print(f"{name}: a table of {len(words):,} words in {time.perf_counter() - start:.2f} s")
    warm = WordPieceEncoder(tokenizer_json, word_table, normalization)

    def cold() -> object:
        return WordPieceEncoder(tokenizer_json, None, normalization).encode(text)

    def theirs() -> list[list[int]]:
        encodings = tokenizer.encode_batch_fast(rows, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def their_spans() -> list[list[tuple[int, int]]]:
        encodings = tokenizer.encode_batch(rows, add_special_tokens=False)
        return [encoding.offsets for encoding in encodings]

    expected = np.array([token for ids in theirs() for token in ids])
    if not np.array_equal(warm.encode(text).ids, expected):
        raise AssertionError(f"{name}: the encoder's ids differ from those of tokenizers")
    spans = partial(warm.encode, text, with_spans=True)
    spans()
    return [
        Case(f"{name}, warm", "MB/s", megabytes, partial(warm.encode, text), _PEER, theirs),
        Case(f"{name}, warm, spans", "MB/s", megabytes, spans, "encode_batch", their_spans),
        Case(f"{name}, {len(words):,} new words", "MB/s", megabytes, cold, _PEER, theirs),
    ]


def main(arguments: list[str]) -> None:
    """Run the cases and write runs/bench/encoding.json."""
    texts = [
        ("English", english(_BYTES), 16_384),
        ("Chinese", chinese(_BYTES), 3_694),
        ("mixed", mixed(_BYTES), 16_384),
    ]
    for argument in arguments:
        name, size, path = argument.split("=", 2)
        texts.append((name, from_file(path, _BYTES), int(size)))
    normalization = NormalizationTable.build(TextRules())
    run("encoding", [case for text in texts for case in cases(*text, normalization)])


if __name__ == "__main__":
    main(sys.argv[1:])
