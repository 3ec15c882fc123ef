from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents import clean_text
from pipeline.sentences import split_sentences


def sentences(*documents: str, locale: str = "en") -> list[list[str]]:
    return split_sentences(documents, locale).to_pylist()


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
