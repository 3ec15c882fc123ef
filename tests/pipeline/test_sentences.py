from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import sentences as sentences_module
from pipeline.cleaning import clean
from pipeline.config import CleaningConfig
from pipeline.sentences import lines_as_sentences, split_sentences
from tests.pipeline.cleaned import clean_text, sentences_of


def sentences(*documents: str, locale: str = "en") -> list[list[str]]:
    return sentences_of(documents, locale)


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def test_characters_beyond_the_basic_plane_do_not_shift_boundaries() -> None:
    assert sentences("\U0001f600 hi there. All files. \U0001f600 More") == [
        ["\U0001f600 hi there.", "All files.", "\U0001f600 More"]
    ]
    assert sentences("\U0001f600 one.", "Two. Three.") == [
        ["\U0001f600 one."],
        ["Two.", "Three."],
    ]


def test_abbreviations_of_the_locale_do_not_end_a_sentence() -> None:
    text = (
        'The word "anarchism" comes from Greek, i.e. "anarchy" (cf. "archon"). '
        "It was used by Mr. Smith at 3.5 m."
    )
    assert len(sentences(text)[0]) == 2


def test_a_line_feed_ends_a_sentence() -> None:
    assert sentences("no stop here\nnor here") == [["no stop here", "nor here"]]


def test_white_space_alone_is_no_sentence() -> None:
    assert sentences("  \n \n", "a.", "") == [[], ["a."], []]


def test_spaced_punctuation_is_kept_as_it_is() -> None:
    text = "He left . . . She stayed ? ! Yes."
    assert squeezed("".join(sentences(text)[0])) == squeezed(text)


def test_a_megabyte_without_a_space_is_one_sentence() -> None:
    text = "a" * 1_000_000
    assert sentences(text) == [[text]]


@given(st.lists(st.text(max_size=60), max_size=6))
def test_sentences_joined_are_the_text_but_for_white_space(documents: list[str]) -> None:
    cleaned = [clean_text(text) for text in documents]
    found = sentences(*cleaned)
    assert len(found) == len(documents)
    for text, pieces in zip(cleaned, found, strict=True):
        assert squeezed("".join(pieces)) == squeezed(text)
        assert all(piece == piece.strip() and piece for piece in pieces)


@pytest.mark.parametrize("window", [1, 7, 60, 1000])
def test_a_document_longer_than_a_window_has_the_same_sentences(
    monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    text = (
        'He met Mr. Smith, i.e. "the boss" . . . 12345 (cf. p. 3) lower. \U0001f600 Next! Yes? '
        "No.5 stays.\nA line without end\n" + "word " * 60 + "end. Et cetera... and so on. "
    ) * 3
    cleaned = clean([text, "Short. One.", text], CleaningConfig(), Counter())
    whole = split_sentences(cleaned, "en")
    monkeypatch.setattr(sentences_module, "_WINDOW_BYTES", window)
    found = split_sentences(cleaned, "en")
    assert found.as_lists().equals(whole.as_lists())
    assert found.paragraph_lists().equals(whole.paragraph_lists())


def test_the_paragraph_of_a_sentence_is_its_line() -> None:
    cleaned = clean(["A b. C d.\nE.\n\nFa. Go.", "", "H."], CleaningConfig(), Counter())
    for found, expected in (
        (split_sentences(cleaned, "en"), [[0, 0, 1, 2, 2], [], [0]]),
        (lines_as_sentences(cleaned), [[0, 1, 2], [], [0]]),
    ):
        assert found.paragraph_lists().to_pylist() == expected
        assert len(found.as_lists()) == 3


def test_lines_are_sentences_where_the_text_is_split_already() -> None:
    cleaned = clean(["One. Still one.\nTwo", "Three"], CleaningConfig(), Counter())
    assert lines_as_sentences(cleaned).as_lists().to_pylist() == [
        ["One. Still one.", "Two"],
        ["Three"],
    ]
    assert np.array_equal(lines_as_sentences(cleaned).document_offsets, [0, 2, 3])
