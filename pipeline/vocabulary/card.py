"""The vocabulary card: how well a vocabulary covers text it was not trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.document_keys import source_names
from pipeline.normalization import NormalizationTable
from pipeline.vocabulary.counts import count_words, merge_counts
from pipeline.word_pieces import TokenIds, WordPieces

_WORST_WORDS = 50
_DIGITS = 6  # of a share in the card


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Words:
    """Distinct words and what the vocabulary makes of each; the arrays are int64 [words]."""

    text: pa.LargeStringArray
    ids: TokenIds
    starts: NDArray[np.int64]
    pieces: NDArray[np.int64]
    characters: NDArray[np.int64]
    unknown: NDArray[np.int64]  # 1 where the word is [UNK]
    entries: list[str]


def count_by_source(documents: pa.Table, normalization: NormalizationTable) -> dict[str, pa.Table]:
    """Return the word counts of each source of a partition of documents, by its name."""
    of_row = source_names(documents["document_key"].combine_chunks())
    return {
        source: count_words(
            documents.filter(pc.equal(of_row, source))["sentences"].combine_chunks().flatten(),
            normalization,
        )
        for source in sorted(pc.unique(of_row).to_pylist())
    }


def vocabulary_card(
    counts: Iterable[tuple[str, pa.Table]],
    languages: Mapping[str, str],
    tokenizer_json: str,
    longest_word: int,
) -> dict[str, Any]:
    """Return the card: figures of all words, of each source and of each language.

    `counts` is (source, {word, count}); a source may come more than once. `languages` tells the
    language of each source. Coverage is the share of the characters that stand in words which
    are not [UNK]; the worst words are those that cost most tokens beyond one each.
    """
    sources: dict[str, list[pa.Table]] = {source: [] for source in sorted(languages)}
    for source, table in counts:
        sources[source].append(table)
    by_source = {source: merge_counts(tables) for source, tables in sources.items()}
    by_language = {
        language: merge_counts([by_source[one] for one in by_source if languages[one] == language])
        for language in sorted(set(languages.values()))
    }
    everything = merge_counts(list(by_source.values()))
    words = _look_up(everything, tokenizer_json)

    def figures(table: pa.Table) -> dict[str, Any]:
        return _figures(table, words, longest_word)

    return {
        **figures(everything),
        "by_language": {name: figures(table) for name, table in by_language.items()},
        "by_source": {name: figures(table) for name, table in by_source.items()},
    }


def summary(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return a card without its lists of words."""
    short = {key: value for key, value in card.items() if not key.endswith("_words_shown")}
    for group in "by_language", "by_source":
        if group in short:
            short[group] = {name: summary(one) for name, one in short[group].items()}
    return short


def _look_up(counts: pa.Table, tokenizer_json: str) -> _Words:
    pieces = WordPieces(tokenizer_json)
    text = counts["word"].combine_chunks()
    ids, starts = pieces.ids_of(text)
    unknown = np.concatenate(([0], np.cumsum(ids == pieces.entries["[UNK]"])))[starts]
    return _Words(
        text=text,
        ids=ids,
        starts=starts,
        pieces=np.diff(starts),
        characters=pc.utf8_length(text).to_numpy().astype(np.int64),
        unknown=np.diff(unknown),
        entries=sorted(pieces.entries, key=pieces.entries.__getitem__),
    )


def _figures(counts: pa.Table, words: _Words, longest_word: int) -> dict[str, Any]:
    places = pc.index_in(counts["word"].combine_chunks(), value_set=words.text).to_numpy()
    places = places.astype(np.int64)
    times = counts["count"].to_numpy()
    pieces, unknown = words.pieces[places], words.unknown[places]
    characters = words.characters[places]
    total, tokens = int(times.sum()), int(times @ pieces)
    all_characters = int(times @ characters)
    unknown_characters = int(times @ (characters * unknown))
    # Stable: of equals the more frequent word, then the smaller one in bytes, comes first.
    extra = np.argsort(-times * (pieces - 1), kind="stable")[:_WORST_WORDS]
    without = np.flatnonzero(unknown)[:_WORST_WORDS]
    return {
        "characters": all_characters,
        "coverage": _share(all_characters - unknown_characters, all_characters),
        "distinct_words": counts.num_rows,
        "pieces_per_word": _share(tokens, total),
        "tokens": tokens,
        "too_long_words": int(times @ (characters > longest_word)),
        "unknown_characters": unknown_characters,
        "unknown_rate": _share(int(times @ unknown), total),
        "unknown_words": int(times @ unknown),
        "unknown_words_shown": [_shown(words, places[row], times[row]) for row in without.tolist()],
        "words": total,
        "worst_words_shown": [
            _shown(words, places[row], times[row]) for row in extra.tolist() if pieces[row] > 1
        ],
    }


def _shown(words: _Words, place: int, times: int) -> dict[str, Any]:
    ids = words.ids[words.starts[place] : words.starts[place + 1]].tolist()
    return {
        "count": int(times),
        "pieces": [words.entries[number] for number in ids],
        "word": words.text[int(place)].as_py(),
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, _DIGITS) if whole else None
