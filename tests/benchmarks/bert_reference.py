"""The data preparation of google-research/bert as plain Python functions: peer and oracle.

Written from the description of its released algorithm (Devlin et al. 2019, A.2): basic and
greedy WordPiece tokenisation, NSP pairs, static masks. Lists of strings, as it holds them.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Sequence

Instance = tuple[list[str], list[int], bool, list[int], list[str]]


def basic_tokens(text: str) -> list[str]:
    """Lower-case, strip accents, split at white space and punctuation."""
    found = []
    for word in text.strip().split():
        word = word.lower()
        word = "".join(
            one for one in unicodedata.normalize("NFD", word) if unicodedata.category(one) != "Mn"
        )
        start_new = True
        for character in word:
            code = ord(character)
            is_punctuation = (
                33 <= code <= 47
                or 58 <= code <= 64
                or 91 <= code <= 96
                or 123 <= code <= 126
                or unicodedata.category(character).startswith("P")
            )
            if is_punctuation:
                found.append([character])
                start_new = True
            else:
                if start_new:
                    found.append([])
                start_new = False
                found[-1].append(character)
    return ["".join(one) for one in found]


def wordpiece(token: str, vocabulary: dict[str, int]) -> list[str]:
    """Cut a word greedily, longest entry first."""
    if len(token) > 100:
        return ["[UNK]"]
    pieces = []
    start = 0
    while start < len(token):
        end = len(token)
        while start < end:
            piece = ("##" if start else "") + token[start:end]
            if piece in vocabulary:
                break
            end -= 1
        else:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


def tokenize(text: str, vocabulary: dict[str, int]) -> list[str]:
    """Return the pieces of a sentence."""
    return [piece for token in basic_tokens(text) for piece in wordpiece(token, vocabulary)]


def truncate(a: list[str], b: list[str], limit: int, rng: random.Random) -> None:
    """Cut the longer segment, a token at a time, at its front or back."""
    while len(a) + len(b) > limit:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def masked(
    tokens: list[str], entries: Sequence[str], rng: random.Random, probability: float = 0.15
) -> tuple[list[int], list[str]]:
    """Replace 15 % of the tokens; return their positions and what they were."""
    candidates = [i for i, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    rng.shuffle(candidates)
    count = max(1, round(len(tokens) * probability))
    chosen = []
    for index in candidates[:count]:
        original = tokens[index]
        if rng.random() < 0.8:
            tokens[index] = "[MASK]"
        elif rng.random() >= 0.5:
            tokens[index] = entries[rng.randint(0, len(entries) - 1)]
        chosen.append((index, original))
    chosen.sort()
    return [index for index, _ in chosen], [original for _, original in chosen]


def instances_of(
    documents: list[list[list[str]]],
    index: int,
    max_seq_length: int,
    entries: Sequence[str],
    rng: random.Random,
    short_seq_prob: float = 0.1,
) -> list[Instance]:
    """Return one document's instances."""
    document = documents[index]
    limit = max_seq_length - 3
    target = rng.randint(2, limit) if rng.random() < short_seq_prob else limit
    made: list[Instance] = []
    chunk: list[list[str]] = []
    length = 0
    i = 0
    while i < len(document):
        chunk.append(document[i])
        length += len(document[i])
        if i == len(document) - 1 or length >= target:
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = [token for sentence in chunk[:a_end] for token in sentence]
            b: list[str] = []
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                start = rng.randint(0, len(documents[other]) - 1)
                for sentence in documents[other][start:]:
                    b.extend(sentence)
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - a_end
            else:
                b = [token for sentence in chunk[a_end:] for token in sentence]
            truncate(a, b, limit, rng)
            tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
            types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
            positions, originals = masked(tokens, entries, rng)
            made.append((tokens, types, is_random, positions, originals))
            chunk, length = [], 0
        i += 1
    return made


def create(
    documents: Sequence[Sequence[str]], entries: Sequence[str], max_seq_length: int
) -> list[Instance]:
    """Return the shuffled instances of documents of sentences."""
    rng = random.Random(0)
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    tokenized = [[tokenize(one, vocabulary) for one in document] for document in documents]
    tokenized = [[one for one in document if one] for document in tokenized]
    tokenized = [document for document in tokenized if document]
    made = []
    for index in range(len(tokenized)):
        made += instances_of(tokenized, index, max_seq_length, entries, rng)
    rng.shuffle(made)
    return made
