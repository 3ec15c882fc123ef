from __future__ import annotations

from typing import Any

import pyarrow as pa

from pipeline.contract import DOCUMENT_SCHEMA, canonical_json
from pipeline.vocabulary import (
    SPECIAL_TOKENS,
    TextRules,
    build_tokenizer,
    count_by_source,
    summary,
    vocabulary_card,
)
from tests.pipeline.vocabulary.word_counts import counts_of, uncased

ENTRIES = [*SPECIAL_TOKENS, "the", "a", "##b", "##c"]
COUNTS = [
    ("books", {"the": 6, "ab": 2, "\u4e2d": 1}),
    ("web", {"abc": 4, "the": 1}),
    ("books", {"the": 1, "x" * 9: 1}),
]


def card(longest_word: int = 100) -> dict[str, Any]:
    tokenizer = build_tokenizer(ENTRIES, TextRules(), max_input_chars_per_word=longest_word)
    tables = [(source, counts_of(words)) for source, words in COUNTS]
    languages = {"books": "en", "empty": "en", "web": "de"}
    return vocabulary_card(tables, languages, tokenizer.to_str(), longest_word)


def test_counts_words_pieces_and_what_is_unknown() -> None:
    found = card()
    assert (found["words"], found["distinct_words"]) == (16, 5)
    assert found["tokens"] == 8 + 2 * 2 + 4 * 3 + 1 + 1
    assert found["pieces_per_word"] == 26 / 16
    assert (found["unknown_words"], found["unknown_rate"]) == (2, 2 / 16)
    assert found["characters"] == 8 * 3 + 2 * 2 + 4 * 3 + 1 + 9
    assert found["unknown_characters"] == 10
    assert found["coverage"] == 40 / 50
    assert found["too_long_words"] == 0


def test_tells_how_many_words_are_too_long() -> None:
    assert card(longest_word=8)["too_long_words"] == 1


def test_shows_the_words_that_cost_most_tokens_and_the_unknown_ones() -> None:
    found = card()
    assert found["worst_words_shown"] == [
        {"count": 4, "pieces": ["a", "##b", "##c"], "word": "abc"},
        {"count": 2, "pieces": ["a", "##b"], "word": "ab"},
    ]
    assert [one["word"] for one in found["unknown_words_shown"]] == ["x" * 9, "\u4e2d"]
    assert found["unknown_words_shown"][0]["pieces"] == ["[UNK]"]


def test_shows_fifty_words_at_most() -> None:
    letters = [chr(0x61 + first) + chr(0x61 + second) for first in range(9) for second in range(9)]
    entries = [*SPECIAL_TOKENS, *{word[0] for word in letters}, *{f"##{w[1]}" for w in letters}]
    tokenizer = build_tokenizer(entries, TextRules()).to_str()
    tables = [("one", counts_of(dict.fromkeys(letters, 1)))]
    found = vocabulary_card(tables, {"one": "en"}, tokenizer, 100)
    assert [one["word"] for one in found["worst_words_shown"]] == letters[:50]


def test_tells_each_source_and_each_language() -> None:
    found = card()
    assert set(found["by_source"]) == {"books", "empty", "web"}
    assert found["by_source"]["books"]["words"] == 11
    assert found["by_language"]["de"] == found["by_source"]["web"]
    assert found["by_language"]["en"] == found["by_source"]["books"]
    assert found["by_source"]["web"]["pieces_per_word"] == 13 / 5


def test_a_source_without_held_out_text_has_no_shares() -> None:
    found = card()["by_source"]["empty"]
    assert found["words"] == 0
    assert found["coverage"] is found["pieces_per_word"] is found["unknown_rate"] is None


def test_of_no_held_out_text_at_all_says_so() -> None:
    tokenizer = build_tokenizer(ENTRIES, TextRules()).to_str()
    found = vocabulary_card([], {"books": "en"}, tokenizer, 100)
    assert found["words"] == found["by_language"]["en"]["words"] == 0
    assert found["coverage"] is None
    assert found["worst_words_shown"] == found["unknown_words_shown"] == []


def test_the_summary_has_the_figures_without_the_words() -> None:
    short = summary(card())
    assert short["by_source"]["web"]["coverage"] == 1.0
    assert b"abc" not in canonical_json(short)


def test_words_are_counted_by_the_source_of_their_document() -> None:
    documents = pa.table(
        [
            pa.array([bytes(16)] * 3, pa.binary(16)),
            pa.array(["web/x/y.txt#0.0", "books/b#1.0", "web/z#0.1"], pa.large_string()),
            pa.array([["The a", "b"], ["A"], ["a a"]], pa.large_list(pa.large_string())),
        ],
        schema=DOCUMENT_SCHEMA,
    )
    found = count_by_source(documents, uncased())
    assert {
        source: dict(zip(*counts.to_pydict().values(), strict=True))
        for source, counts in found.items()
    } == {
        "books": {"a": 1},
        "web": {"a": 3, "b": 1, "the": 1},
    }
