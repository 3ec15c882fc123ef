"""What masking must know of a vocabulary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError

_MASK_TOKEN = "[MASK]"
_CONTINUATION_PREFIX = "##"
_UNUSED = re.compile(r"\[unused\d+\]")


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
