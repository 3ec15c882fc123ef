"""WordPiece from word counts: merge the best pair of pieces until the size is reached.

"frequency" is the rule of the tokenizers library's WordPieceTrainer (byte-pair merges over a
word's first character and the ## forms of the others): the most frequent pair. "likelihood" is
the rule WordPiece is described with: the highest count(ab) / (count(a) count(b)). Of equals it is
the pair of the smaller left id, then the smaller right id; ids follow the order of the entries.
So the vocabulary is a function of the counts alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from pipeline.errors import ConfigError, InputError
from pipeline.vocabulary.alphabet import Letters, choose_alphabet, replace_by_ids
from pipeline.vocabulary.counts import check_counts
from pipeline.vocabulary.layout import CONTINUATION, PRINTABLE_ASCII
from pipeline.vocabulary.likelihood_queue import LikelihoodQueue
from pipeline.vocabulary.pair_counts import PairCounts
from pipeline.vocabulary.pair_queue import PairQueue

Algorithm = Literal["frequency", "likelihood"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainedVocabulary:
    """The entries in the order of their ids, and what the alphabet leaves out of the text."""

    entries: list[str]
    alphabet: dict[str, Any]


def train_wordpiece(
    counts: pa.Table,
    *,
    vocab_size: int,
    leading: Sequence[str],
    min_pair_count: int,
    alphabet_limit: int,
    alphabet_coverage: float = 1.0,
    required: str = PRINTABLE_ASCII,
    algorithm: Algorithm = "frequency",
) -> TrainedVocabulary:
    """Return exactly `vocab_size` entries: `leading`, the alphabet, then pieces as merged.

    `counts` is {word, count} in any order. The alphabet is that of `choose_alphabet`; a word with
    any other character is left out, as it would be [UNK]. Pairs seen fewer than
    `min_pair_count` times are not merged.
    Raises ConfigError where the size cannot be met, InputError for an empty table.
    """
    check_training(counts, vocab_size, alphabet_limit, min_pair_count)
    # One order whatever the table's: the entries do not depend on it, the run time does.
    letters = Letters.of(counts.sort_by("word"))
    alphabet, letters = choose_alphabet(
        letters, limit=alphabet_limit, coverage=alphabet_coverage, required=required
    )
    forms = alphabet.entries()
    entries = list(dict.fromkeys([*leading, *forms]))
    if len(entries) > vocab_size:
        raise ConfigError(
            f"vocabulary.vocab_size = {vocab_size}: the special tokens and the alphabet alone are"
            f" {len(entries)} entries; raise it or lower vocabulary.alphabet_limit"
        )
    ids = {entry: index for index, entry in enumerate(entries)}
    form_ids = np.zeros(int(alphabet.forms.max()) + 1, np.int32)
    form_ids[alphabet.forms] = [ids[form] for form in forms]
    symbols = letters.forms
    replace_by_ids(symbols, form_ids)
    queue: PairQueue | LikelihoodQueue
    if algorithm == "frequency":
        queue = PairQueue(PairCounts(symbols, letters.starts, letters.counts), min_pair_count)
    else:
        piece_counts = np.zeros(vocab_size, np.int64)
        np.add.at(piece_counts, symbols, np.repeat(letters.counts, np.diff(letters.starts)))
        pairs = PairCounts(symbols, letters.starts, letters.counts)
        queue = LikelihoodQueue(pairs, piece_counts, min_pair_count)
    while len(entries) < vocab_size:
        pair = queue.pop()
        if pair is None:
            raise ConfigError(
                f"vocabulary.vocab_size = {vocab_size}: this corpus gives at most {len(entries)}"
                " entries; lower it or vocabulary.min_pair_count, or add text"
            )
        queue.merge(*pair, merged_id(entries, ids, pair))
    return TrainedVocabulary(entries=entries, alphabet=alphabet.report)


def check_training(
    counts: pa.Table, vocab_size: int, alphabet_limit: int, min_pair_count: int
) -> None:
    """Raise ConfigError for settings below 1, InputError for counts one cannot train from."""
    if vocab_size < 1 or alphabet_limit < 1 or min_pair_count < 1:
        raise ConfigError(
            f"vocabulary: vocab_size = {vocab_size}, alphabet_limit = {alphabet_limit},"
            f" min_pair_count = {min_pair_count}: each must be at least 1"
        )
    if counts.num_rows == 0:
        raise InputError("word counts: the table is empty: the corpus has no words")
    check_counts(counts)


def merged_id(entries: list[str], ids: dict[str, int], pair: tuple[int, int]) -> int:
    """Return the id of a merged pair; a new entry unless its spelling has an id already."""
    left, right = pair
    piece = entries[left] + entries[right].removeprefix(CONTINUATION)
    # Different merges may spell the same piece: then it keeps the id it has.
    piece_id = ids.setdefault(piece, len(entries))
    if piece_id == len(entries):
        entries.append(piece)
    return piece_id
