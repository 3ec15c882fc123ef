from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipeline.errors import ConfigError, InputError
from pipeline.vocabulary import (
    SPECIAL_TOKENS,
    count_words,
    merge_counts,
    split_counts,
    train_wordpiece,
    vocab_txt,
)
from pipeline.vocabulary.layout import PRINTABLE_ASCII
from pipeline.vocabulary.training import Algorithm
from tests.pipeline.vocabulary.reference_training import alphabet, reference
from tests.pipeline.vocabulary.word_counts import counts_of, texts, uncased

CHINESE = [chr(0x4E00 + number) for number in range(5000)]


def train(
    words: dict[str, int],
    vocab_size: int,
    *,
    min_pair_count: int = 1,
    alphabet_limit: int = 1000,
    alphabet_coverage: float = 1.0,
    required: str = "",
    algorithm: Algorithm = "frequency",
    leading: tuple[str, ...] = SPECIAL_TOKENS,
) -> list[str]:
    return train_wordpiece(
        counts_of(words),
        vocab_size=vocab_size,
        leading=leading,
        min_pair_count=min_pair_count,
        alphabet_limit=alphabet_limit,
        alphabet_coverage=alphabet_coverage,
        required=required,
        algorithm=algorithm,
    ).entries


small_tables = st.dictionaries(
    st.text(st.sampled_from("ab\u00e9\U0001d518"), min_size=1, max_size=8),
    st.integers(1, 4) | st.integers(2**31, 2**40),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("algorithm", ["frequency", "likelihood"])
@settings(deadline=None, max_examples=200)
@given(small_tables, st.integers(14, 60), st.integers(1, 3))
def test_equals_recounting_every_pair_before_each_merge(
    algorithm: Algorithm, words: dict[str, int], vocab_size: int, least: int
) -> None:
    expected, _ = reference(words, vocab_size, least, algorithm)
    if len(expected) < vocab_size:
        with pytest.raises(ConfigError, match=f"at most {len(expected)} entries"):
            train(words, vocab_size, min_pair_count=least, algorithm=algorithm)
    else:
        assert train(words, vocab_size, min_pair_count=least, algorithm=algorithm) == expected


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_tokenizers_library_where_no_choice_is_tied(seed: int) -> None:
    draws = random.Random(seed)
    while True:
        spellings = ("".join(draws.choices("abcd", k=draws.randint(2, 5))) for _ in range(60))
        words = {word: draws.randint(20, 900) for word in spellings}
        base = len(reference(words, 1, 1)[0])
        expected, tied = reference(words, base + 12, 1)
        if not tied:
            break
    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    letters = {letter for word in words for letter in word}
    initials = {word[0] for word in words}
    trainer = trainers.WordPieceTrainer(
        # The library also gives letters that begin no word an entry of their own.
        vocab_size=len(expected) + len(letters - initials),
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    library.train_from_iterator((f"{w} " * count for w, count in words.items()), trainer)
    theirs = set(library.get_vocab()) - (letters - initials)
    assert theirs == set(train(words, len(expected)))


@pytest.mark.parametrize("algorithm", ["frequency", "likelihood"])
def test_does_not_depend_on_the_order_of_the_counts(algorithm: Algorithm) -> None:
    draws = random.Random(0)
    words = {"".join(draws.choices("abcdef", k=draws.randint(1, 7))): 1 for _ in range(300)}
    expected = train(words, 120, algorithm=algorithm)
    for _ in range(5):
        shuffled = list(words.items())
        draws.shuffle(shuffled)
        assert train(dict(shuffled), 120, algorithm=algorithm) == expected


EMOJI_TEXT = "Wel come to the \U0001f917 Tok en izers libr ary."
TRAIN_FROM_TEXT = """
import sys
import pyarrow as pa
from pipeline.vocabulary import *
text = pa.array([sys.argv[1]], pa.large_string())
rules = TextRules(lowercase=False)
counts = count_words(text, NormalizationTable.build(rules))
for algorithm in ("frequency", "likelihood"):
    entries = train_wordpiece(counts, vocab_size=45, leading=SPECIAL_TOKENS, min_pair_count=1,
        alphabet_limit=1000, required="", algorithm=algorithm).entries
    print(ascii(build_tokenizer(entries, rules).to_str()))
"""


def test_fresh_processes_write_the_same_bytes() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", TRAIN_FROM_TEXT, EMOJI_TEXT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert "\\U0001f917" in outputs.pop()


@pytest.mark.parametrize("algorithm", ["frequency", "likelihood"])
def test_any_number_of_partitions_gives_the_same_vocabulary(algorithm: Algorithm) -> None:
    draws = random.Random(1)
    rows = [
        " ".join(
            "".join(draws.choices("abcdefg\u00e9\u4e2d", k=draws.randint(1, 6))) for _ in "12345"
        )
        for _ in range(200)
    ]
    found = set()
    for partitions in (1, 2, 5):
        parts = [texts(rows[part::partitions]) for part in range(partitions)]
        buckets = zip(
            *(split_counts(count_words(part, uncased()), partitions) for part in parts), strict=True
        )
        counts = merge_counts([merge_counts(bucket) for bucket in buckets])
        trained = train_wordpiece(
            counts,
            vocab_size=200,
            leading=SPECIAL_TOKENS,
            min_pair_count=2,
            alphabet_limit=1000,
            algorithm=algorithm,
            required="",
        )
        found.add(vocab_txt(trained.entries))
    assert len(found) == 1


@pytest.mark.parametrize("algorithm", ["frequency", "likelihood"])
def test_many_pairs_and_long_words_grow_the_tables(algorithm: Algorithm) -> None:
    draws = random.Random(0)
    words = {"".join(draws.choices(CHINESE[:400], k=40)): 2 for _ in range(3000)}
    words["abababab" * 20] = 10**6
    entries = train(words, 1000, algorithm=algorithm)
    assert len(entries) == len(set(entries)) == 1000
    assert len(max(entries, key=len)) > 4


def test_likelihood_ranks_scores_that_floats_cannot_tell_apart() -> None:
    # 1/(2**53 + 1) and 1/2**53 are one float; the smaller count has the higher score.
    words = {"ab": 2**53 + 1, "cd": 2**53}
    assert train(words, 10, algorithm="likelihood")[-1] == "cd"
    assert train(words, 10, algorithm="frequency")[-1] == "ab"


def test_likelihood_prefers_rare_pieces_that_stand_together() -> None:
    words = {"ab": 100, "ac": 100, "db": 100, "xy": 5}
    base = len(alphabet(words)) + len(SPECIAL_TOKENS)
    assert train(words, base + 1, algorithm="likelihood")[-1] == "xy"
    assert train(words, base + 1, algorithm="likelihood", min_pair_count=6)[-1] == "ac"


def test_counts_beyond_32_bits_rank_right() -> None:
    # 2**32 + 1 truncated to 32 bits would be 1, and "cd" would come first.
    assert train({"ab": 2**32 + 1, "cd": 3, "ab cd": 1}, 11)[-1] == "ab"


def test_a_pair_beyond_two_to_the_31_is_counted_over_many_words() -> None:
    # No single word passes 2**31; the pair "ab" does, and 32-bit sums would be negative.
    words = {f"ab{chr(0x4E00 + number)}": 2**30 for number in range(3)} | {"cd": 2**31 - 1}
    base = len(alphabet(words)) + len(SPECIAL_TOKENS)
    assert train(words, base + 2)[-2:] == ["ab", "cd"]


def test_character_total_beyond_64_bits_is_refused() -> None:
    with pytest.raises(InputError, match=r"lower\s+the corpus weights"):
        train({"abcd": 2**61}, 20)


def test_leading_entries_come_first_in_the_order_given() -> None:
    assert train({"ab": 1}, 8) == [*SPECIAL_TOKENS, "a", "##b", "ab"]


def test_a_leading_entry_is_not_made_twice() -> None:
    leading = (*SPECIAL_TOKENS, "abc", "a", "##d")
    entries = train({"abc": 5, "abd": 2}, 12, leading=leading)
    assert entries[:8] == list(leading)
    assert entries[8:] == ["##b", "##c", "ab", "abd"]


def test_a_character_has_both_forms_where_it_occurs_so() -> None:
    assert set(train({"ab": 1, "ba": 1, "c": 1}, 10)) == {
        *SPECIAL_TOKENS,
        *("a", "b", "c", "##a", "##b"),
    }


class TestAlphabet:
    def test_limit_keeps_the_frequent_then_the_smaller_code_point(self) -> None:
        words = {"\u4e03": 5, "\u4e02": 5, "\u4e01": 5, "\u4e04": 9}
        assert train(words, 8, alphabet_limit=3)[5:] == ["\u4e01", "\u4e02", "\u4e04"]

    def test_printable_ascii_has_both_forms_even_where_it_never_occurs(self) -> None:
        words = dict.fromkeys(CHINESE[:1200], 40)
        both = [form for letter in PRINTABLE_ASCII for form in (letter, f"##{letter}")]
        entries = train(words, 5 + 188 + 906, required=PRINTABLE_ASCII)
        assert set(both) < set(entries)
        assert len(entries) == 1099

    def test_coverage_leaves_out_the_rarest(self) -> None:
        words = {"\u4e01": 90, "\u4e02": 7, "\u4e03": 2, "\u4e04": 1}
        assert train(words, 7, alphabet_coverage=0.97)[5:] == ["\u4e01", "\u4e02"]
        assert train(words, 8, alphabet_coverage=0.98)[5:] == ["\u4e01", "\u4e02", "\u4e03"]
        assert train(words, 6, alphabet_coverage=0.98, alphabet_limit=1)[5:] == ["\u4e01"]

    def test_what_is_left_out_is_told_with_the_text_it_costs(self) -> None:
        trained = train_wordpiece(
            counts_of({"\u4e01": 90, "a\u4e02": 7, "\u4e02\u4e02": 1, "aa": 2}),
            vocab_size=8,
            leading=SPECIAL_TOKENS,
            min_pair_count=3,
            alphabet_limit=2,
            required="a",
        )
        assert trained.entries[5:] == ["a", "\u4e01", "##a"]
        assert trained.alphabet == {
            "characters": 90 + 14 + 2 + 4,
            "characters_left_out": 9,
            "distinct_characters": 3,
            "distinct_characters_left_out": 1,
            "distinct_words_left_out": 2,
            "most_frequent_left_out": [["\u4e02", 9]],
            "words": 100,
            "words_left_out": 8,
        }

    def test_larger_than_the_vocabulary_is_an_error_before_training(self) -> None:
        words = dict.fromkeys(CHINESE, 1)
        with pytest.raises(ConfigError, match=r"vocab_size = 1000: .* are 1005 entries"):
            train(words, 1000, alphabet_limit=1000)

    def test_no_entry_is_white_space(self) -> None:
        entries = train({"\xa0": 9, "a\u2028": 9, "\u3000": 5, "ab": 1}, 8)
        assert not [entry for entry in entries if entry.removeprefix("##").isspace()]


def test_empty_counts_are_refused() -> None:
    with pytest.raises(InputError, match="the corpus has no words"):
        train({}, 10)


def test_size_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="vocab_size = 0"):
        train({"a": 1}, 0)
