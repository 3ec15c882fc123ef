"""Keys of random draws: a pure function of (seed, purpose, identity). Needs nothing but Python."""

from __future__ import annotations

import hashlib
from typing import Literal

Purpose = Literal[
    "partition",  # which partition a document belongs to, and its place in it
    "held_out",  # which documents are kept for evaluation
    "corpus",  # which documents a byte limit keeps
    "pair",  # target lengths, segment splits, random next documents, truncation
    "mask",  # which positions are masked, and by what
    "evaluation_mask",  # the fixed masks of held-out instances
    "order",  # the order of record batches and rows in an epoch
    "dropout",  # the seed torch gets before each micro-batch
    "weights",  # initial weights
]


def derive_key(seed: int, purpose: Purpose, *identity: int | str) -> int:
    """Return the 64-bit Philox key of (seed, purpose, identity); BLAKE2b over their text form."""
    text = "\x1f".join([str(seed), purpose, *map(str, identity)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
