"""A small vocabulary, masked rows read back, and a plain form of the masking rule."""

from __future__ import annotations

import numpy as np

from pipeline.config import MaskingConfig
from pipeline.derived_keys import derive_key
from pipeline.keyed_random import draw
from pipeline.masking import MaskedTokens, mask_tokens, token_classes

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
UNUSED = [f"[unused{number}]" for number in range(5)]
WORDS = [f"word{number}" for number in range(40)]
PIECES = [f"##piece{number}" for number in range(37)]
VOCABULARY = SPECIAL + UNUSED + WORDS + PIECES  # 87 entries
PAD, UNK, CLS, SEP, MASK = range(5)
FIRST_WORD = len(SPECIAL) + len(UNUSED)
FIRST_PIECE = FIRST_WORD + len(WORDS)
CLASSES = token_classes(VOCABULARY, range(5))

TOKEN = MaskingConfig()
WHOLE_WORD = MaskingConfig(unit="whole_word")
NGRAM = MaskingConfig(unit="ngram")
SPAN = MaskingConfig(unit="span")
BERNOULLI = MaskingConfig(amount="bernoulli")


def mask(rows, rules=TOKEN, *, numbers=None, dtype=np.uint16, **changes) -> MaskedTokens:
    arguments = {"seed": 3, "purpose": "mask", "epoch": 0, "repetition": 0, "classes": CLASSES}
    numbers = range(len(rows)) if numbers is None else numbers
    return mask_tokens(
        np.concatenate([np.asarray(row, dtype=dtype) for row in rows])
        if len(rows)
        else np.empty(0, dtype=dtype),
        np.cumsum([0, *map(len, rows)], dtype=np.int64),
        np.array(list(numbers), dtype=np.uint64),
        rules=rules,
        **(arguments | changes),
    )


def call(input_ids, offsets, numbers, classes=CLASSES) -> MaskedTokens:
    return mask_tokens(
        input_ids,
        offsets,
        numbers,
        seed=3,
        purpose="mask",
        epoch=0,
        repetition=0,
        rules=TOKEN,
        classes=classes,
    )


def by_row(rows, masked: MaskedTokens) -> list[tuple[list[int], list[int], list[int]]]:
    """Input ids, positions within the row, and original ids, row by row."""
    found = []
    start = 0
    for row, tokens in enumerate(rows):
        chosen = slice(masked.row_offsets[row], masked.row_offsets[row + 1])
        found.append(
            (
                masked.input_ids[start : start + len(tokens)].tolist(),
                (masked.positions[chosen] - start).tolist(),
                masked.masked_lm_ids[chosen].tolist(),
            )
        )
        start += len(tokens)
    return found


def text_rows(rows, tokens, seed=0, pieces=0.3) -> list[list[int]]:
    """[CLS] A [SEP] B [SEP] of words and ## pieces."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(FIRST_WORD, FIRST_PIECE, (rows, tokens))
    is_piece = rng.random((rows, tokens)) < pieces
    ids[is_piece] = rng.integers(FIRST_PIECE, len(VOCABULARY), is_piece.sum())
    ids[:, 0] = CLS
    ids[:, tokens // 2] = ids[:, -1] = SEP
    return ids.tolist()


def units_of(row, rules, word_starts=None) -> list[list[int]]:
    """Positions that are chosen together; of n-grams and spans, their words."""
    units = []
    previous = None
    for position, token in enumerate(row):
        if token not in range(5):
            is_piece = VOCABULARY[token].startswith("##")
            if word_starts is not None:
                is_piece = not word_starts[position]
            joins = rules.unit != "token" and is_piece
            if joins and previous == position - 1:
                units[-1].append(position)
            else:
                units.append([position])
            previous = position
    return units


def length_shares(rules) -> list[float]:
    if rules.unit == "ngram":  # Lan et al. 2020, 3.1
        weights = [1 / n for n in range(1, rules.max_ngram + 1)]
    else:  # Joshi et al. 2020, 3.1
        weights = [0.2 * 0.8 ** (n - 1) for n in range(1, 11)]
    return [weight / sum(weights) for weight in weights]


def reference_mask(row, number, rules, seed, purpose, epoch, repetition, word_starts=None):
    """The rule of mask_tokens for one row, in lists, fed the same draws."""

    def word(index):
        return int(
            draw(
                np.uint64(derive_key(seed, purpose)),
                np.uint32(index),
                np.uint32(epoch * 256 + repetition),
                np.uint64(number),
            )
        )

    units = units_of(row, rules, word_starts)
    chosen: list[int] = []
    if rules.amount == "bernoulli":
        for index, unit in enumerate(units):
            if word(index) < round(rules.probability * 2**32):
                chosen.extend(unit)
    else:
        budget = max(1, int(rules.probability * sum(map(len, units)) + 0.5))
        if rules.max_predictions_per_seq:
            budget = min(budget, rules.max_predictions_per_seq)
        words_left = list(units)
        for index in range(len(units) if rules.unit in ("ngram", "span") else 0):
            if len(chosen) == budget:
                break
            other = index + (word(index) * (len(units) - index) >> 32)
            words_left[index], words_left[other] = words_left[other], words_left[index]
            place = units.index(words_left[index])
            if units[place][0] in chosen:
                continue
            drawn = word(2**30 + index)
            shares = length_shares(rules)
            length = 1
            while length < len(shares) and drawn >= round(sum(shares[:length]) * 2**32):
                length += 1
            for at in range(place, min(place + length, len(units))):
                touches = at == place or units[at][0] == units[at - 1][-1] + 1
                fits = len(chosen) + len(units[at]) <= budget
                if not touches or units[at][0] in chosen or not fits:
                    break
                chosen.extend(units[at])
        if rules.unit in ("ngram", "span") and units and not chosen:
            chosen.extend(words_left[0])
        for index in range(len(units) if rules.unit in ("token", "whole_word") else 0):
            other = index + (word(index) * (len(units) - index) >> 32)
            units[index], units[other] = units[other], units[index]
            if len(chosen) + len(units[index]) <= budget:
                chosen.extend(units[index])
        if units and not chosen:
            chosen.extend(units[0])

    corrupted = list(row)
    for ordinal, position in enumerate(sorted(chosen)):
        words = [word(2**31 + 2 * ordinal + half) for half in range(2)]
        if words[0] < round(rules.mask_share * 2**32):
            corrupted[position] = MASK
        elif words[0] < round((rules.mask_share + rules.random_share) * 2**32):
            ordinary = WORDS + PIECES
            corrupted[position] = VOCABULARY.index(ordinary[words[1] * len(ordinary) >> 32])
    return corrupted, sorted(chosen), [row[position] for position in sorted(chosen)]
