"""WordPiece training written plainly: every pair is counted anew before each merge."""

from __future__ import annotations

import collections
import itertools
from fractions import Fraction

from pipeline.vocabulary import SPECIAL_TOKENS


def alphabet(words: dict[str, int], required: str = "") -> list[str]:
    """Return initial forms, then ## forms, each by code point."""
    initial = {word[0] for word in words} | set(required)
    others = {letter for word in words for letter in word[1:]} | set(required)
    return [*sorted(initial), *("##" + letter for letter in sorted(others))]


def reference(
    words: dict[str, int], vocab_size: int, min_pair_count: int, algorithm: str = "frequency"
) -> tuple[list[str], bool]:
    """Return the entries, and whether any choice was between equals."""
    pieces = {word: [word[0], *("##" + letter for letter in word[1:])] for word in words}
    entries = [*SPECIAL_TOKENS, *alphabet(words)]
    tied = False
    while len(entries) < vocab_size:
        pairs: collections.Counter[tuple[str, str]] = collections.Counter()
        of_piece: collections.Counter[str] = collections.Counter()
        for word, spelling in pieces.items():
            for piece in spelling:
                of_piece[piece] += words[word]
            for pair in itertools.pairwise(spelling):
                pairs[pair] += words[word]
        scores = {
            pair: Fraction(count, of_piece[pair[0]] * of_piece[pair[1]])
            if algorithm == "likelihood"
            else Fraction(count)
            for pair, count in pairs.items()
            if count >= min_pair_count
        }
        if not scores:
            break
        best = max(scores.values())
        equals = [pair for pair, score in scores.items() if score == best]
        tied |= len(equals) > 1
        left, right = min(equals, key=lambda pair: (entries.index(pair[0]), entries.index(pair[1])))
        merged = left + right[2:]
        if merged not in entries:
            entries.append(merged)
        for spelling in pieces.values():
            place = 0
            while place + 1 < len(spelling):
                if (spelling[place], spelling[place + 1]) == (left, right):
                    spelling[place : place + 2] = [merged]
                place += 1
    return entries, tied
