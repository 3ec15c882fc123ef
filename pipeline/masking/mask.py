"""One masking function, static or dynamic, over flat arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.config import MaskingConfig
from pipeline.derived_keys import derive_key
from pipeline.errors import ConfigError
from pipeline.masking.classes import TokenClasses
from pipeline.masking.kernels import mask_rows
from pipeline.ragged import Ids, check_offsets, read_only

_WORDS = 1 << 32  # distinct 32-bit draws: a share p is the threshold p * 2**32
_REPETITION_BITS = 8
_EPOCH_BITS = 24
# Joshi et al. 2020, 3.1: Geo(0.2), lengths above 10 drawn again, so 3.8 words in the mean.
_SPAN_SUCCESS = 0.2
_SPAN_WORDS = 10


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


def require_words(rules: MaskingConfig, classes: TokenClasses, *, has_word_starts: bool) -> None:
    """Raise ConfigError where words are to be masked and nothing tells where they begin."""
    if rules.unit != "token" and not has_word_starts and not classes.continuation.any():
        raise ConfigError(
            f"masking.unit = {rules.unit!r}: the vocabulary has no ## pieces to tell words by; "
            "use a WordPiece vocabulary or masking.unit = 'token'"
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
    word_starts: NDArray[np.bool_] | None = None,
) -> MaskedTokens:
    """Choose and replace tokens of B instances (Devlin et al. 2019, 3.1 and A.2).

    `input_ids` uint16 or uint32 [N]; `offsets` int64 [B + 1]; `instance_numbers` uint64 [B];
    `word_starts` bool [N], which tokens begin a word, else ## tells.
    A unit is a maskable token, or with whole words such a token and those after it that begin no
    word; a piece that follows a special token (its word was cut) opens a unit. Special tokens
    are never chosen.

    ngram, span: words are drawn as starts, each with a length in words: n with p(n) ~ 1/n up to
    max_ngram (Lan et al. 2020, 3.1), or geometric with p = 0.2 up to 10 (Joshi et al. 2020, 3.1).
    The words from the start on are chosen together, fewer where a special token, a word chosen
    before, or the budget comes first.

    exact: the budget of an instance with n maskable tokens is probability * n, half rounded up,
    at least 1 and at most max_predictions_per_seq. Units are drawn without replacement; one that
    would exceed the budget is passed over. Where every word is longer than the budget, the first
    word drawn is chosen whole: the only case of more tokens than the budget.
    bernoulli: each unit is chosen with the given probability, so an instance may have none.

    Each chosen token becomes [MASK], a random ordinary token, or stays, independently of the
    others, also within a word.

    `seed`, `purpose`, `epoch` (below 2**24), `repetition` (below 2**8) and the instance number
    fix an instance's mask.

    Raises ConfigError for an epoch or repetition out of range, or words with a vocabulary
    without ## pieces and no word_starts; ValueError for ids outside of the vocabulary or arrays
    that do not fit.
    """
    if not 0 <= epoch < 1 << _EPOCH_BITS:
        raise ConfigError(f"epoch = {epoch}: must be in [0, 2**{_EPOCH_BITS})")
    if not 0 <= repetition < 1 << _REPETITION_BITS:
        raise ConfigError(f"repetition = {repetition}: must be in [0, 2**{_REPETITION_BITS})")
    require_words(rules, classes, has_word_starts=word_starts is not None)
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

    if word_starts is None:
        word_starts = np.empty(0, dtype=np.bool_)
    elif word_starts.shape != input_ids.shape or word_starts.dtype != np.bool_:
        raise ValueError(
            f"word_starts are {word_starts.size} of {word_starts.dtype}: must be {input_ids.size} "
            "of bool"
        )

    corrupted = input_ids.copy()
    # At most every token. Pages that are never written take no memory.
    positions = np.empty(input_ids.size, dtype=np.int64)
    row_offsets = np.zeros(offsets.size, dtype=np.int64)
    limit = rules.max_predictions_per_seq or input_ids.size
    chosen = mask_rows(
        read_only(input_ids),
        read_only(offsets),
        read_only(instance_numbers),
        np.uint64(derive_key(seed, purpose)),
        np.uint32(epoch << _REPETITION_BITS | repetition),
        rules.probability,
        np.uint64(round(rules.probability * _WORDS)),
        rules.unit != "token",
        length_thresholds(rules),
        rules.amount == "exact",
        np.int64(limit),
        np.uint64(round(rules.mask_share * _WORDS)),
        np.uint64(round((rules.mask_share + rules.random_share) * _WORDS)),
        read_only(classes.maskable),
        read_only(classes.continuation),
        read_only(word_starts),
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


def length_thresholds(rules: MaskingConfig) -> NDArray[np.uint64]:
    """Return the ascending thresholds of a unit's length in words: n is the first above a draw.

    uint64, the last 2**32; empty where a unit is one token or one word.
    """
    if rules.unit == "ngram":
        weights = (1.0 / np.arange(1, rules.max_ngram + 1)).tolist()
    elif rules.unit == "span":
        weights = [(1.0 - _SPAN_SUCCESS) ** failures for failures in range(_SPAN_WORDS)]
    else:
        return np.empty(0, dtype=np.uint64)
    thresholds = [round(sum(weights[: n + 1]) / sum(weights) * _WORDS) for n in range(len(weights))]
    return np.array(thresholds, dtype=np.uint64)
