"""Cleaning: what changes, what stays, and that every change is counted."""

from __future__ import annotations

import unicodedata
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import cleaning
from pipeline.cleaning import clean
from pipeline.config import CleaningConfig
from tests.pipeline.cleaned import clean_counted, clean_text

# Text of what cleaning treats each in its own way, and plain letters.
messy_text = st.text(
    st.one_of(
        st.sampled_from(
            "ab.7\n\r\t \x00\x0b\x1c\x7f\x85\xa0\xad\u0301\u200b\u200d\u2028\u2029\u3000"
            "\ufeff\ufffd\ud800"
        ),
        st.characters(),
    ),
    max_size=40,
)
VANISHING = "\xad\u180e\u200b\u2060\ufeff\ufffd"


@settings(deadline=None)  # the first call makes the table of classes
@given(messy_text)
def test_cleaning_twice_changes_nothing_more(text: str) -> None:
    once = clean_text(text)
    assert clean_counted(once) == (once, {})


@given(messy_text)
def test_what_nothing_was_counted_of_is_as_it_was(text: str) -> None:
    cleaned, counts = clean_counted(text)
    if not counts:
        assert cleaned == "\n".join(line for line in text.split("\n") if line)


@given(messy_text)
def test_cleaned_text_is_nfc_in_lines_that_are_not_empty(text: str) -> None:
    cleaned = clean_text(text)
    assert unicodedata.is_normalized("NFC", cleaned)
    cleaned.encode()
    assert len(f"{cleaned}x".splitlines()) == cleaned.count("\n") + 1
    assert all(line == line.strip() and line for line in cleaned.split("\n") if cleaned)
    assert "  " not in cleaned
    assert not any(unicodedata.category(one) == "Cc" for one in cleaned.replace("\n", ""))


@given(messy_text)
def test_cleaning_keeps_every_other_character(text: str) -> None:
    def content(value: str) -> str:
        kept = [
            one
            for one in value
            if not one.isspace()
            and unicodedata.category(one) not in ("Cc", "Cs")
            and one not in VANISHING
        ]
        # Compared without white space, which may stand between characters that would compose.
        return unicodedata.normalize("NFD", "".join(kept))

    assert content(clean_text(text)) == content(text)


@given(st.lists(messy_text, max_size=6))
def test_documents_cleaned_together_are_those_cleaned_alone(texts: list[str]) -> None:
    together: Counter[str] = Counter()
    cleaned = clean(texts, CleaningConfig(), together)
    found = [cleaned.utf8[start:end].tobytes().decode() for start, end in cleaned.spans()]
    alone = [clean_counted(text) for text in texts]
    assert found == [text for text, _ in alone]
    assert cleaned.utf8.tobytes() == "".join(f"{text}\n" for text in found).encode()
    assert together == sum((Counter(counts) for _, counts in alone), Counter())


@given(st.lists(st.tuples(messy_text, st.booleans()), max_size=6))
def test_selected_documents_are_the_others_left_out(texts: list[tuple[str, bool]]) -> None:
    cleaned = clean([text for text, _ in texts], CleaningConfig(), Counter())
    kept = np.array([keep for _, keep in texts], np.bool_)
    chosen = clean([text for text, keep in texts if keep], CleaningConfig(), Counter())
    selected = cleaned.select(kept)
    assert selected.utf8.tobytes() == chosen.utf8.tobytes()
    assert selected.ends.tolist() == chosen.ends.tolist()


@settings(deadline=None)
@given(st.lists(st.text("ae\u0301\u0323 \n\u1100\u1161\u0958", max_size=30), max_size=5))
def test_windows_of_normalisation_change_nothing(texts: list[str]) -> None:
    found = []
    for size in (1, 3, 1 << 16):
        counts: Counter[str] = Counter()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cleaning, "_NORMALIZED_BYTES", size)
            cleaned = clean(texts, CleaningConfig(), counts)
        found.append((cleaned.utf8.tobytes(), cleaned.ends.tolist(), counts))
    assert found[0] == found[1] == found[2]
    assert unicodedata.is_normalized("NFC", found[0][0].decode())


def test_lines_end_at_line_feeds_only() -> None:
    text = "alpha\u2029beta\ngamma\u2028delta\x85epsilon\x0bzeta\x0ceta\n"
    assert clean_counted(text) == (
        "alpha beta\ngamma delta epsilon zeta eta",
        {"other_white_space_to_space": 5},
    )


def test_carriage_returns_before_a_line_feed_go_and_alone_are_spaces() -> None:
    assert clean_counted("one\rtwo\r\nthree") == (
        "one two\nthree",
        {"carriage_returns_removed": 1, "other_white_space_to_space": 1},
    )


@pytest.mark.parametrize(
    ("text", "cleaned", "counts"),
    [
        ("hello\x00world\nx:\x00\n\x00", "helloworld\nx:", {"control_characters_removed": 3}),
        ("a\u200bb\xadc\ufeff", "abc", {"zero_width_characters_removed": 3}),
        ("می\u200cخواهم 👩\u200d👧", "می\u200cخواهم 👩\u200d👧", {}),
        (
            "  a \t b  ",
            "a b",
            {"white_space_collapsed": 6, "other_white_space_to_space": 1},
        ),
        ("cafe\u0301", "café", {"documents_normalized": 1}),
        ("e\ufeff\u0301", "é", {"zero_width_characters_removed": 1, "documents_normalized": 1}),
        ("a\ud800b", "ab", {"surrogates_removed": 1}),
        ("", "", {}),
    ],
)
def test_each_change_is_counted(text: str, cleaned: str, counts: dict[str, int]) -> None:
    assert clean_counted(text) == (cleaned, counts)


def test_each_rule_can_be_switched_off() -> None:
    text = "e\u0301\x07 \u200b a\xa0\xa0b"
    every = {
        "normalize_nfc": "\xe9",
        "remove_control": "\x07",
        "remove_zero_width": "\u200b",
        "collapse_white_space": "\xa0\xa0",
    }
    for rule, trace in every.items():
        assert (trace in clean_text(text, **{rule: False})) == (rule != "normalize_nfc")
    assert "e\u0301" in clean_text(text, normalize_nfc=False)


def test_lines_of_symbols_and_digits_go_where_asked_for() -> None:
    text = "Title\n* * *\n12 . 3\n--\n§ 4a\n\u2764\ufe0f 1\ufe0f\u20e3\n日本\n"
    assert clean_counted(text, drop_symbol_lines=True) == (
        "Title\n§ 4a\n日本",
        {"symbol_lines_dropped": 4, "symbol_line_bytes_dropped": 5 + 6 + 2 + 14},
    )
    assert clean_text(text) == text.rstrip("\n")
