"""WordPieceEncoder against tokenizers' encode_batch_fast on one thread, on docstrings.

Warm: every word is in the table. Cold: the table is empty, so the library is asked for each
distinct word. Both encode the same rows, a docstring each, and their ids are compared first.
"""

from __future__ import annotations

import os

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import ast
import itertools
import sysconfig
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.encoding import WordPieceEncoder, build_word_table
from pipeline.normalization import NormalizationTable, TextRules
from pipeline.vocabulary import SPECIAL_TOKENS, build_tokenizer, count_words, train_wordpiece
from tests.benchmarks.harness import Case, run

_CORPUS_BYTES = 12_000_000


def docstrings() -> list[str]:
    """Return the docstrings of the standard library, module by module."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue  # the standard library's own tests hold files that must not parse
        for node in ast.walk(tree):
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                found.append(text)
    return found


def _corpus() -> list[str]:
    rows: list[str] = []
    size = 0
    for number, text in enumerate(itertools.cycle(docstrings())):
        if size > _CORPUS_BYTES:
            return rows
        rows.append(f"{text} {number}")
        size += len(rows[-1].encode())
    raise AssertionError("an endless cycle ended")


def main() -> None:
    """Run the cases and write runs/bench/encoding.json."""
    rows = _corpus()
    text = pa.array(rows, pa.large_string())
    megabytes = sum(len(row.encode()) for row in rows) / 1e6
    rules = TextRules()
    normalization = NormalizationTable.build(rules)
    counts = count_words(text, normalization)
    entries = train_wordpiece(
        counts,
        vocab_size=8192,
        leading=SPECIAL_TOKENS,
        min_pair_count=2,
        alphabet_limit=1000,
    ).entries
    tokenizer = build_tokenizer(entries, rules)
    tokenizer.encode_special_tokens = True
    tokenizer_json = tokenizer.to_str()
    words = counts["word"].combine_chunks()
    word_table = build_word_table(tokenizer_json, words)
    warm = WordPieceEncoder(tokenizer_json, word_table, normalization)

    def cold() -> object:
        return WordPieceEncoder(tokenizer_json, None, normalization).encode(text)

    def theirs() -> list[list[int]]:
        encodings = tokenizer.encode_batch_fast(rows, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    expected = np.array([token for ids in theirs() for token in ids])
    if not np.array_equal(warm.encode(text).ids, expected):
        raise AssertionError("the encoder's ids differ from those of tokenizers")
    peer = "tokenizers, 1 thread"
    warm_case = f"docstrings, warm table of {len(words):,} words"
    cold_case = f"docstrings, {len(words):,} new words"
    run(
        "encoding",
        [
            Case(warm_case, "MB/s", megabytes, lambda: warm.encode(text), peer, theirs),
            Case(cold_case, "MB/s", megabytes, cold, peer, theirs),
        ],
    )


if __name__ == "__main__":
    main()
