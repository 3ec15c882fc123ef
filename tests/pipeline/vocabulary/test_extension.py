from __future__ import annotations

import collections
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.vocabulary import SPECIAL_TOKENS, TextRules, build_tokenizer, extend_vocabulary
from tests.pipeline.vocabulary.word_counts import counts_of

EXISTING = [
    *("[PAD]", "[unused1]", "[unused2]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("a", "b", "c", "##a", "##b", "##c", "cab", "##ab"),
]


def extend(
    words: dict[str, int],
    new_entries: int,
    *,
    existing: list[str] = EXISTING,
    user_tokens: tuple[str, ...] = (),
    vocab_size: int = 0,
    alphabet_limit: int = 1000,
    min_pair_count: int = 1,
) -> list[str]:
    unused = sum(entry.startswith("[unused") for entry in existing)
    return extend_vocabulary(
        counts_of(words),
        existing,
        new_entries=new_entries,
        vocab_size=vocab_size or len(existing) + max(new_entries - unused, 0),
        user_tokens=user_tokens,
        rules=TextRules(),
        required="",
        min_pair_count=min_pair_count,
        alphabet_limit=alphabet_limit,
        alphabet_coverage=1.0,
        max_input_chars_per_word=100,
    ).entries


def test_new_entries_fill_the_unused_ids_first_and_then_follow() -> None:
    entries = extend({"aabb": 9, "cabcab": 4}, 3)
    assert entries[1:3] == ["aab", "aabb"]  # of a ##ab ##b
    assert len(entries) == len(EXISTING) + 1
    kept = [place for place, entry in enumerate(EXISTING) if "unused" not in entry]
    assert [entries[place] for place in kept] == [EXISTING[place] for place in kept]


def test_words_are_cut_into_the_pieces_there_are_before_anything_is_merged() -> None:
    # cab ##c ##ab: of the two pairs, that of the smaller left id comes first.
    assert extend({"cabcab": 5}, 2)[1:3] == ["##cab", "cabcab"]


def test_a_character_that_is_missing_comes_by_its_count() -> None:
    entries = extend({"ac": 9, "\u4e2d": 8, "ba": 7, "\u6587": 6}, 4)
    assert [*entries[1:3], *entries[len(EXISTING) :]] == ["ac", "\u4e2d", "ba", "\u6587"]


def test_a_missing_character_has_its_entry_before_any_pair_of_it() -> None:
    assert extend({"ad": 5}, 2)[1:3] == ["##d", "ad"]


def test_characters_beyond_the_limit_are_not_added() -> None:
    words = {"ad": 9, "\u4e2d": 5, "ab": 1}
    assert extend(words, 3, alphabet_limit=1)[1:3] == ["##d", "ad"]
    assert "\u4e2d" not in extend(words, 3, alphabet_limit=1)


def test_user_tokens_come_first_and_known_ones_are_not_repeated() -> None:
    entries = extend({"bc": 9}, 2, user_tokens=("cab", "covid"))
    assert entries[1:3] == ["covid", "bc"]
    assert entries.count("cab") == 1


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(
        st.text(st.sampled_from("abcd"), min_size=1, max_size=7), st.integers(1, 9), min_size=1
    )
)
def test_equals_recounting_every_pair_before_each_choice(words: dict[str, int]) -> None:
    forms: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for place, letter in enumerate(word):
            forms[f"##{letter}" if place else letter] += count
    missing = [form for form in sorted(forms, key=lambda f: (len(f), f)) if form not in EXISTING]
    missing.sort(key=lambda form: -forms[form])
    names = [*EXISTING, *missing]
    tokenizer = build_tokenizer(names, TextRules())
    pieces = {word: tokenizer.encode(word, add_special_tokens=False).tokens for word in words}
    chosen: list[str] = []
    while len(chosen) < 4:
        pairs: collections.Counter[tuple[str, str]] = collections.Counter()
        for word, spelling in pieces.items():
            for pair in itertools.pairwise(spelling):
                pairs[pair] += words[word]
        best = max(pairs.values(), default=0)
        if missing and forms[missing[0]] >= best:
            chosen.append(missing.pop(0))
            continue
        if not pairs:
            break
        left, right = min(
            (pair for pair in pairs if pairs[pair] == best),
            key=lambda pair: (names.index(pair[0]), names.index(pair[1])),
        )
        merged = left + right[2:]
        if merged not in names:
            names.append(merged)
            chosen.append(merged)
        for spelling in pieces.values():
            place = 0
            while place + 1 < len(spelling):
                if (spelling[place], spelling[place + 1]) == (left, right):
                    spelling[place : place + 2] = [merged]
                place += 1
    if len(chosen) < 4:
        with pytest.raises(ConfigError, match=f"gives at most {len(chosen)};"):
            extend(words, 4)
    else:
        entries = extend(words, 4)
        assert [*entries[1:3], *entries[len(EXISTING) :]] == chosen


def test_another_size_than_results_is_refused_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"vocab_size = 20: .* 2 of them .* it has 16; write"):
        extend({"ab": 1}, 3, vocab_size=20)


def test_more_user_tokens_than_new_entries_are_refused() -> None:
    with pytest.raises(ConfigError, match="new_entries = 1: 2 user_tokens are new"):
        extend({"ab": 1}, 1, user_tokens=("covid", "corona"))


def test_a_vocabulary_without_unused_entries_grows() -> None:
    existing = [*SPECIAL_TOKENS, "a", "##b"]
    assert extend({"ab": 2}, 1, existing=existing) == [*existing, "ab"]
