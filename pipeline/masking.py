"""Masked language modelling: which tokens are predicted, and what the model sees instead.

One function serves static masking (when instances are built) and dynamic masking (in the
loader). The mask of an instance is f(seed, purpose, epoch, instance number, repetition), so it
does not depend on the batch the instance stands in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.config import MaskingConfig
from pipeline.errors import ConfigError
from pipeline.keyed_random import below, derive_key, philox
from pipeline.ragged import Ids, check_offsets, read_only

_MASK_TOKEN = "[MASK]"
_CONTINUATION_PREFIX = "##"
_UNUSED = re.compile(r"\[unused\d+\]")

_WORDS = 1 << 32  # distinct 32-bit draws: a share p is the threshold p * 2**32
_REPETITION_BITS = 8
_EPOCH_BITS = 24
# An instance's draws: those from 0 choose its units, one each; those from 2**31 replace its
# chosen tokens, two each.
_REPLACEMENT_BLOCK = np.uint32((1 << 31) // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenClasses:
    """What masking must know of a vocabulary of V entries.

    `maskable` bool [V], not special; `continuation` bool [V], a ## piece of a word;
    `random_ids` uint32 [R], the ordinary tokens a chosen token may be replaced with; `mask_id`.
    """

    maskable: NDArray[np.bool_]
    continuation: NDArray[np.bool_]
    random_ids: NDArray[np.uint32]
    mask_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedTokens:
    """Corrupted instances and what they hide.

    `input_ids` [N], a corrupted copy of the same dtype; `positions` int64 [M] into it, ascending;
    `row_offsets` int64 [B + 1] into `positions`; `masked_lm_ids` [M], the original ids.
    """

    input_ids: Ids
    positions: NDArray[np.int64]
    row_offsets: NDArray[np.int64]
    masked_lm_ids: Ids


def token_classes(vocabulary: Sequence[str], special_ids: Sequence[int]) -> TokenClasses:
    """Classify the tokens of a WordPiece vocabulary, given in id order.

    Random replacements exclude special and [unusedN] tokens; the released code of Devlin et al.
    2019 draws from the whole vocabulary.

    Raises ConfigError where [MASK] is missing, is not special, or no ordinary token exists.
    """
    for special in special_ids:
        if not 0 <= special < len(vocabulary):
            raise ConfigError(
                f"special id {special}: outside of the vocabulary of {len(vocabulary)} entries"
            )
    maskable = np.ones(len(vocabulary), dtype=np.bool_)
    maskable[list(special_ids)] = False
    if _MASK_TOKEN not in vocabulary:
        raise ConfigError(f"vocabulary: has no {_MASK_TOKEN}; masking needs it")
    mask_id = list(vocabulary).index(_MASK_TOKEN)
    if maskable[mask_id]:
        raise ConfigError(f"{_MASK_TOKEN} (id {mask_id}): must be one of the special ids")
    continuation = np.array(
        [
            token.startswith(_CONTINUATION_PREFIX) and len(token) > len(_CONTINUATION_PREFIX)
            for token in vocabulary
        ],
        dtype=np.bool_,
    )
    unused = np.array([_UNUSED.fullmatch(token) is not None for token in vocabulary])
    random_ids = np.flatnonzero(maskable & ~unused).astype(np.uint32)
    if random_ids.size == 0:
        raise ConfigError("vocabulary: has special and unused entries only; nothing can be masked")
    return TokenClasses(
        maskable=maskable,
        continuation=continuation & maskable,
        random_ids=random_ids,
        mask_id=mask_id,
    )


def mask_tokens(
    input_ids: Ids,
    offsets: NDArray[np.int64],
    instance_numbers: NDArray[np.uint64],
    *,
    seed: int,
    purpose: Literal["mask", "evaluation_mask"],
    epoch: int,
    repetition: int,
    rules: MaskingConfig,
    classes: TokenClasses,
) -> MaskedTokens:
    """Choose and replace tokens of B instances (Devlin et al. 2019, 3.1 and A.2).

    `input_ids` uint16 or uint32 [N]; `offsets` int64 [B + 1]; `instance_numbers` uint64 [B].
    A unit is a maskable token, or with whole words such a token and the ## pieces after it; a
    piece that follows a special token (its word was cut) opens a unit. Special tokens are never
    chosen.

    exact: the budget of an instance with n maskable tokens is probability * n, half rounded up,
    at least 1 and at most max_predictions_per_seq. Units are drawn without replacement; one that
    would exceed the budget is passed over. Where every word is longer than the budget, the first
    word drawn is chosen whole: the only case of more tokens than the budget.
    bernoulli: each unit is chosen with the given probability, so an instance may have none.

    Each chosen token becomes [MASK], a random ordinary token, or stays, independently of the
    others, also within a word.

    `seed`, `purpose`, `epoch` (below 2**24), `repetition` (below 2**8) and the instance number
    fix an instance's mask.

    Raises ConfigError for an epoch or repetition out of range, or whole words with a vocabulary
    without ## pieces; ValueError for ids outside of the vocabulary or offsets that do not fit.
    """
    if not 0 <= epoch < 1 << _EPOCH_BITS:
        raise ConfigError(f"epoch = {epoch}: must be in [0, 2**{_EPOCH_BITS})")
    if not 0 <= repetition < 1 << _REPETITION_BITS:
        raise ConfigError(f"repetition = {repetition}: must be in [0, 2**{_REPETITION_BITS})")
    if rules.unit == "whole_word" and not classes.continuation.any():
        raise ConfigError(
            "masking.unit = 'whole_word': the vocabulary has no ## pieces to tell words by; "
            "use a WordPiece vocabulary or masking.unit = 'token'"
        )
    check_offsets("offsets", offsets, input_ids.size)
    if offsets.size != instance_numbers.size + 1:
        raise ValueError(
            f"{offsets.size} offsets for {instance_numbers.size} instances: must be one more"
        )
    if instance_numbers.dtype != np.uint64:
        raise ValueError(f"instance_numbers are {instance_numbers.dtype}: must be uint64")
    if input_ids.dtype not in (np.uint16, np.uint32):
        raise ValueError(f"input_ids are {input_ids.dtype}: must be uint16 or uint32")
    if input_ids.size and int(input_ids.max()) >= classes.maskable.size:
        raise ValueError(
            f"input_ids hold {int(input_ids.max())}, the vocabulary {classes.maskable.size} "
            f"entries: the ids belong to another vocabulary"
        )

    corrupted = input_ids.copy()
    # At most every token. Pages that are never written take no memory.
    positions = np.empty(input_ids.size, dtype=np.int64)
    row_offsets = np.zeros(offsets.size, dtype=np.int64)
    limit = rules.max_predictions_per_seq or input_ids.size
    chosen = _mask_rows(
        read_only(input_ids),
        read_only(offsets),
        read_only(instance_numbers),
        np.uint64(derive_key(seed, purpose)),
        np.uint32(epoch << _REPETITION_BITS | repetition),
        rules.probability,
        np.uint64(round(rules.probability * _WORDS)),
        rules.unit == "whole_word",
        rules.amount == "exact",
        np.int64(limit),
        np.uint64(round(rules.mask_share * _WORDS)),
        np.uint64(round((rules.mask_share + rules.random_share) * _WORDS)),
        read_only(classes.maskable),
        read_only(classes.continuation),
        read_only(classes.random_ids),
        np.uint32(classes.mask_id),
        corrupted,
        positions,
        row_offsets,
    )
    positions = positions[:chosen].copy()
    return MaskedTokens(
        input_ids=corrupted,
        positions=positions,
        row_offsets=row_offsets,
        masked_lm_ids=input_ids[positions],
    )


@nb.njit(cache=True, nogil=True)
def _mask_rows(
    input_ids: NDArray[Any],
    offsets: NDArray[np.int64],
    instance_numbers: NDArray[np.uint64],
    key: np.uint64,
    stream: np.uint32,
    probability: float,
    unit_threshold: np.uint64,
    whole_word: bool,
    exact: bool,
    limit: np.int64,
    mask_threshold: np.uint64,
    random_threshold: np.uint64,
    maskable: NDArray[np.bool_],
    continuation: NDArray[np.bool_],
    random_ids: NDArray[np.uint32],
    mask_id: np.uint32,
    corrupted: NDArray[Any],
    positions: NDArray[np.int64],
    row_offsets: NDArray[np.int64],
) -> int:
    """Fill `corrupted`, `positions` and `row_offsets`; return the number of positions."""
    longest = 0
    for row in range(instance_numbers.size):
        longest = max(longest, offsets[row + 1] - offsets[row])
    unit_starts = np.empty(longest, dtype=np.int64)
    unit_ends = np.empty(longest, dtype=np.int64)
    is_chosen = np.zeros(longest, dtype=np.bool_)

    written = 0
    for row in range(instance_numbers.size):
        begin = offsets[row]
        length = offsets[row + 1] - begin
        identity = instance_numbers[row]
        row_ids = input_ids[begin : begin + length]
        units, candidates = _find_units(
            row_ids, whole_word, maskable, continuation, unit_starts, unit_ends
        )
        if exact:
            budget = min(max(int(probability * candidates + 0.5), 1), limit)
            _choose_exactly(units, budget, key, stream, identity, unit_starts, unit_ends, is_chosen)
        else:
            _choose_each(
                units, unit_threshold, key, stream, identity, unit_starts, unit_ends, is_chosen
            )

        first = written
        words = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
        for token in range(length):
            if not is_chosen[token]:
                continue
            is_chosen[token] = False
            ordinal = written - first
            if ordinal & 1 == 0:
                block = np.uint32(_REPLACEMENT_BLOCK + np.uint32(ordinal >> 1))
                words = philox(key, block, stream, identity)
                kind = words[0]
                which = words[1]
            else:
                kind = words[2]
                which = words[3]
            if np.uint64(kind) < mask_threshold:
                corrupted[begin + token] = mask_id
            elif np.uint64(kind) < random_threshold:
                corrupted[begin + token] = random_ids[below(which, np.uint32(random_ids.size))]
            positions[written] = begin + token
            written += 1
        row_offsets[row + 1] = written
    return written


@nb.njit(cache=True, nogil=True)
def _find_units(
    row_ids: NDArray[Any],
    whole_word: bool,
    maskable: NDArray[np.bool_],
    continuation: NDArray[np.bool_],
    unit_starts: NDArray[np.int64],
    unit_ends: NDArray[np.int64],
) -> tuple[int, int]:
    """Fill the units' spans within the row; return how many, and their tokens."""
    units = 0
    candidates = 0
    inside = False
    for token in range(row_ids.size):
        if not maskable[row_ids[token]]:
            inside = False
            continue
        candidates += 1
        if whole_word and inside and continuation[row_ids[token]]:
            unit_ends[units - 1] = token + 1
        else:
            unit_starts[units] = token
            unit_ends[units] = token + 1
            units += 1
            inside = True
    return units, candidates


@nb.njit(cache=True, nogil=True)
def _choose_exactly(
    units: int,
    budget: int,
    key: np.uint64,
    stream: np.uint32,
    identity: np.uint64,
    unit_starts: NDArray[np.int64],
    unit_ends: NDArray[np.int64],
    is_chosen: NDArray[np.bool_],
) -> None:
    """Draw units without replacement (Fisher-Yates, stopped early) until the budget is spent."""
    left = budget
    words = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
    for drawn in range(units):
        if left == 0:
            return
        if drawn & 3 == 0:
            words = philox(key, np.uint32(drawn >> 2), stream, identity)
        other = drawn + np.int64(below(words[drawn & 3], np.uint32(units - drawn)))
        start = unit_starts[other]
        end = unit_ends[other]
        unit_starts[other] = unit_starts[drawn]
        unit_ends[other] = unit_ends[drawn]
        unit_starts[drawn] = start
        unit_ends[drawn] = end
        if end - start <= left:
            is_chosen[start:end] = True
            left -= end - start
    if units > 0 and left == budget:
        is_chosen[unit_starts[0] : unit_ends[0]] = True


@nb.njit(cache=True, nogil=True)
def _choose_each(
    units: int,
    threshold: np.uint64,
    key: np.uint64,
    stream: np.uint32,
    identity: np.uint64,
    unit_starts: NDArray[np.int64],
    unit_ends: NDArray[np.int64],
    is_chosen: NDArray[np.bool_],
) -> None:
    """Draw each unit by itself."""
    words = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
    for drawn in range(units):
        if drawn & 3 == 0:
            words = philox(key, np.uint32(drawn >> 2), stream, identity)
        if np.uint64(words[drawn & 3]) < threshold:
            is_chosen[unit_starts[drawn] : unit_ends[drawn]] = True
