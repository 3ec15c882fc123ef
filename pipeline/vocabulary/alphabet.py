"""The characters a vocabulary can spell with, and what those it leaves out cost."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numba as nb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.pretokenize import text_buffers
from pipeline.vocabulary.layout import CONTINUATION

_CODE_POINTS = 0x110000
_CONTINUES = _CODE_POINTS  # added to a code point that does not begin its word
_LEFT_OUT_SHOWN = 50  # characters left out that the manifest names


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Letters:
    """Words as characters: forms int32 [characters], starts int64 [words + 1], counts int64.

    A form is a code point where it begins its word, else the number of its ## form.
    """

    forms: NDArray[np.int32]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, counts: pa.Table) -> Letters:
        """Spell the words of {word, count}; InputError where the text is too long for 64 bits."""
        words = counts["word"].combine_chunks()
        words = words.chunk(0) if isinstance(words, pa.ChunkedArray) else words
        text, offsets = text_buffers(words)
        characters = str(text[offsets[0] : offsets[-1]].data, "utf-8").encode("utf-32-le")
        forms = np.frombuffer(characters, np.int32) + _CONTINUES
        del characters
        lengths = pc.utf8_length(words).to_numpy()
        starts = np.concatenate(([0], np.cumsum(lengths)))
        forms[starts[:-1][lengths > 0]] -= _CONTINUES
        word_counts = counts["count"].to_numpy()
        total = float(np.dot(word_counts.astype(np.float64), lengths.astype(np.float64)))
        if total >= 2.0**62:
            raise InputError(
                f"word counts: {total:.3g} characters in all: pairs could pass 2**63 - 1; lower"
                " the corpus weights"
            )
        return cls(forms=forms, starts=starts, counts=word_counts)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Alphabet:
    """The forms that get an entry, sorted int32, and what is left out of it."""

    forms: NDArray[np.int32]
    report: dict[str, Any]

    def entries(self) -> list[str]:
        """Return the forms as entries of a vocabulary, in their order."""
        return [entry_of(form) for form in self.forms.tolist()]


def entry_of(form: int) -> str:
    """Return a form as an entry of a vocabulary."""
    return chr(form) if form < _CONTINUES else CONTINUATION + chr(form - _CONTINUES)


def choose_alphabet(
    letters: Letters, *, limit: int, coverage: float, required: str
) -> tuple[Alphabet, Letters]:
    """Return the alphabet, and the words that are spelt with it alone.

    It is made of the `required` characters, then the most frequent others (of equals the smaller
    code point) until they cover that share of all characters of the text, `limit` in all at
    most. A character has its initial and its ## form where it occurs so, a required one always.
    White space is never in it.
    """
    weight = np.zeros(_CODE_POINTS, np.int64)
    _weigh(letters.forms, letters.starts, letters.counts, weight)
    total = int(weight.sum())
    # White space would be trimmed, or end the line, where vocab.txt is read.
    white = [point for point in np.flatnonzero(weight) if chr(point).isspace()]
    occurs = np.flatnonzero(weight)
    ranked = occurs[np.lexsort((occurs, -weight[occurs]))]
    always = np.array([ord(character) for character in required], np.int64)
    others = ranked[~np.isin(ranked, [*always, *white])]
    missing = math.ceil(Fraction(coverage) * total) - int(weight[always].sum())
    covered = np.concatenate(([0], np.cumsum(weight[others])))
    enough = int(np.searchsorted(covered, missing)) if missing > 0 else 0
    kept = others[: min(enough, max(limit - len(always), 0))]
    in_alphabet = np.zeros(_CODE_POINTS, np.bool_)
    in_alphabet[always] = True
    in_alphabet[kept] = True

    occurring = np.zeros(2 * _CODE_POINTS, np.bool_)
    occurring[always] = True
    occurring[always + _CONTINUES] = True
    whole = np.zeros(letters.counts.size, np.bool_)
    _spell(letters.forms, letters.starts, in_alphabet, occurring, whole)
    forms = np.flatnonzero(occurring).astype(np.int32)
    left_out = ranked[~in_alphabet[ranked]]
    report = {
        "characters": total,
        "characters_left_out": int(weight[left_out].sum()),
        "distinct_characters": len(ranked),
        "distinct_characters_left_out": len(left_out),
        "distinct_words_left_out": int(np.count_nonzero(~whole)),
        "most_frequent_left_out": [
            [chr(point), int(weight[point])] for point in left_out[:_LEFT_OUT_SHOWN].tolist()
        ],
        "words": int(letters.counts.sum()),
        "words_left_out": int(letters.counts[~whole].sum()),
    }
    alphabet = Alphabet(forms=forms, report=report)
    if whole.all():
        return alphabet, letters
    lengths = np.diff(letters.starts)
    return alphabet, Letters(
        forms=letters.forms[np.repeat(whole, lengths)],
        starts=np.concatenate(([0], np.cumsum(lengths[whole]))),
        counts=letters.counts[whole],
    )


# Compiled, as an int64 for each character of 10 million words would be 650 MB an array.
@nb.njit(cache=True, _nrt=False)
def _weigh(
    forms: NDArray[np.int32],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    weight: NDArray[np.int64],
) -> None:
    """Add to the weight of each code point how often it stands in the text."""
    for word in range(counts.size):
        for place in range(starts[word], starts[word + 1]):
            weight[forms[place] % _CONTINUES] += counts[word]


@nb.njit(cache=True, _nrt=False)
def _spell(
    forms: NDArray[np.int32],
    starts: NDArray[np.int64],
    in_alphabet: NDArray[np.bool_],
    occurring: NDArray[np.bool_],
    whole: NDArray[np.bool_],
) -> None:
    """Mark the forms of the alphabet that occur, and the words that are made of them alone."""
    for word in range(whole.size):
        spelt = starts[word + 1] > starts[word]
        for place in range(starts[word], starts[word + 1]):
            form = forms[place]
            if in_alphabet[form % _CONTINUES]:
                occurring[form] = True
            else:
                spelt = False
        whole[word] = spelt


@nb.njit(cache=True, _nrt=False)
def replace_by_ids(forms: NDArray[np.int32], ids: NDArray[np.int32]) -> None:
    """Put the id of each form in its place."""
    for place in range(forms.size):
        forms[place] = ids[forms[place]]
