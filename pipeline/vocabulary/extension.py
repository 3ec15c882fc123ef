"""Continuing from an existing vocabulary: its entries keep their ids, new ones fill [unused] first.

The words are cut into the pieces the vocabulary has, and the merges go on from there: each new
entry is the pair of pieces that stands most often in the text, the one that saves most tokens. A
character the vocabulary lacks makes its whole word [UNK]; it is a candidate by its own count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline.errors import ConfigError
from pipeline.normalization import TextRules
from pipeline.vocabulary.alphabet import Letters, choose_alphabet
from pipeline.vocabulary.files import build_tokenizer
from pipeline.vocabulary.layout import unused_ids
from pipeline.vocabulary.pair_counts import PairCounts
from pipeline.vocabulary.pair_queue import PairQueue
from pipeline.vocabulary.training import TrainedVocabulary, check_training, merged_id
from pipeline.word_pieces import WordPieces


def extend_vocabulary(
    counts: pa.Table,
    existing: Sequence[str],
    *,
    new_entries: int,
    vocab_size: int,
    user_tokens: Sequence[str],
    rules: TextRules,
    required: str,
    min_pair_count: int,
    alphabet_limit: int,
    alphabet_coverage: float,
    max_input_chars_per_word: int,
) -> TrainedVocabulary:
    """Return `existing` with `new_entries` more: user tokens first, then the most useful.

    A character's count ranks it before a pair of the same count. `alphabet_limit` is on the
    characters that `existing` lacks. Words with a character beyond it, or too long ones, are left
    out: they are [UNK].
    Raises ConfigError where the result has not `vocab_size` entries or the text gives fewer.
    """
    check_training(counts, vocab_size, alphabet_limit, min_pair_count)
    slots = unused_ids(existing)
    size = len(existing) + max(new_entries - len(slots), 0)
    if vocab_size != size:
        raise ConfigError(
            f"vocabulary.vocab_size = {vocab_size}: start_from has {len(existing)} entries,"
            f" {len(slots)} of them [unused], and with vocabulary.new_entries = {new_entries} it"
            f" has {size}; write that"
        )
    counts = counts.sort_by("word")
    letters = Letters.of(counts)
    spelt_already = {entry for entry in existing if len(entry) == 1} | set(required)
    alphabet, letters = choose_alphabet(
        letters,
        limit=alphabet_limit + len(spelt_already),
        coverage=alphabet_coverage,
        required="".join(sorted(spelt_already)),
    )
    known = set(existing)
    added = [token for token in user_tokens if token not in known]
    if len(added) > new_entries:
        raise ConfigError(
            f"vocabulary.new_entries = {new_entries}: {len(added)} user_tokens are new; raise it"
        )
    known.update(added)
    weights = np.zeros(len(alphabet.forms), np.int64)
    places = np.searchsorted(alphabet.forms, letters.forms)
    np.add.at(weights, places, np.repeat(letters.counts, np.diff(letters.starts)))
    missing = [
        (int(weights[place]), entry)
        for place, entry in enumerate(alphabet.entries())
        if weights[place] and entry not in known
    ]
    missing.sort(key=lambda one: -one[0])
    # Ids while merging; what is chosen gets its own below.
    entries = [*existing, *added, *(entry for _, entry in missing)]
    ids = {entry: index for index, entry in enumerate(entries)}
    pieces = WordPieces(
        build_tokenizer(entries, rules, max_input_chars_per_word=max_input_chars_per_word).to_str()
    )
    flat, starts = pieces.ids_of(counts["word"].combine_chunks())
    symbols = flat.astype(np.int32)
    unknown = np.concatenate(([0], np.cumsum(symbols == ids["[UNK]"])))[starts]
    spelt = np.diff(unknown) == 0
    lengths = np.diff(starts)
    pairs = PairCounts(
        symbols[np.repeat(spelt, lengths)],
        np.concatenate(([0], np.cumsum(lengths[spelt]))),
        counts["count"].to_numpy()[spelt],
    )
    chosen = _most_useful(pairs, missing, entries, ids, added, new_entries, min_pair_count)
    result = list(existing)
    for slot, entry in zip(slots, chosen, strict=False):
        result[slot] = entry
    result += chosen[len(slots) :]
    return TrainedVocabulary(entries=result, alphabet=alphabet.report)


def _most_useful(
    pairs: PairCounts,
    missing: Sequence[tuple[int, str]],
    entries: list[str],
    ids: dict[str, int],
    added: Sequence[str],
    new_entries: int,
    min_pair_count: int,
) -> list[str]:
    """Choose by count among the pairs and the `missing` characters, the most frequent first."""
    queue = PairQueue(pairs, min_pair_count)
    chosen = list(added)
    characters = list(missing)
    while len(chosen) < new_entries:
        pair = queue.pop()
        count = 0 if pair is None else pairs.count(*pair)
        # A pair is never more frequent than its characters: they have an entry before it.
        while characters and characters[0][0] >= count and len(chosen) < new_entries:
            chosen.append(characters.pop(0)[1])
        if len(chosen) == new_entries:
            break
        if pair is None:
            raise ConfigError(
                f"vocabulary.new_entries = {new_entries}: this corpus gives at most {len(chosen)};"
                " lower it or add text"
            )
        before = len(entries)
        queue.merge(*pair, merged_id(entries, ids, pair))
        chosen += entries[before:]
    return chosen
