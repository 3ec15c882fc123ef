"""Memory of training a vocabulary from 10 million distinct words, merging their counts included.

There is no peer here: the figure is the highest resident memory of the process, Python and all.
"""

from __future__ import annotations

import resource
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.normalization import TextRules
from pipeline.vocabulary import (
    COUNTS_SCHEMA,
    SPECIAL_TOKENS,
    merge_counts,
    required_characters,
    train_wordpiece,
)
from tests.benchmarks.harness import save

_WORDS = 10_000_000
_TABLES = 8
_SYLLABLES = [first + second for first in "bcdfghjklmnpqrstvwz" for second in "aeiou"]


def tables() -> list[pa.Table]:
    """Return the counts of distinct words of 4 to 6 syllables and an ending, by Zipf's law."""
    number: NDArray[np.int64] = np.arange(_WORDS, dtype=np.int64)
    random = np.random.default_rng(0)
    syllables = pa.array([*_SYLLABLES, ""], pa.large_string())
    columns = []
    for _ in range(4):  # these alone make every word another
        columns.append(syllables.take(pa.array(number % len(_SYLLABLES))))
        number //= len(_SYLLABLES)
    columns += [  # two words in five have neither
        syllables.take(pa.array(random.integers(60, 190, _WORDS).clip(max=95))) for _ in range(2)
    ]
    words = pc.binary_join_element_wise(*columns, pa.scalar("", pa.large_string()))
    counts = random.zipf(1.3, _WORDS).clip(1, 10**9)
    table = pa.table([words, pa.array(counts)], schema=COUNTS_SCHEMA)
    rows = _WORDS // _TABLES
    return [table.slice(part * rows, rows).combine_chunks() for part in range(_TABLES)]


def peak_bytes() -> int:
    """Return the highest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Run the case and write runs/bench/vocabulary_memory.json."""
    parts = tables()
    size = sum(part.nbytes for part in parts)
    before = peak_bytes()
    start = time.process_time()
    counts = merge_counts(parts)
    del parts
    trained = train_wordpiece(
        counts,
        vocab_size=30_522,
        leading=SPECIAL_TOKENS,
        required=required_characters(TextRules()),
        min_pair_count=2,
        alphabet_limit=1_000,
    )
    result = {
        "case": f"{counts.num_rows:,} distinct words of {size / 1e6:.0f} MB",
        "value": peak_bytes() / 1e9,
        "before": before / 1e9,
        "unit": "GB resident at most",
        "cpu_seconds": time.process_time() - start,
        "entries": len(trained.entries),
    }
    print(result)
    save("vocabulary_memory", [result])


if __name__ == "__main__":
    main()
