"""What a set of instances is like: counts added up over partitions, and the shares they give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.contract import LABEL_COUNTS
from pipeline.instance_rows import InstanceRows
from pipeline.masking import TokenClasses
from pipeline.ragged import Ids, read_only

# Buckets of the length histogram, as shares of max_seq_length.
LENGTH_BUCKETS = 16

Counts = dict[str, Any]

# Six digits tell a share of one token in a million; a manifest's floats stay short.
_DIGITS = 6


def mask_counts(rows: InstanceRows, classes: TokenClasses) -> Counts:
    """Count what static masking did to the rows; a random token that hit the original is kept."""
    assert rows.masked_lm_ids is not None
    now = rows.input_ids[rows.flat_masked_positions()]
    masked = int(np.count_nonzero(now == classes.mask_id))
    kept = int(np.count_nonzero(now == rows.masked_lm_ids))
    # Every masked token was maskable; of what stands there now only [MASK] is not.
    maskable = count_flagged(rows.input_ids, classes.maskable)
    return {
        "maskable_tokens": maskable + masked,
        "masked_tokens": int(now.size),
        "masked_by_mask": masked,
        "masked_by_random": int(now.size) - masked - kept,
        "masked_kept": kept,
    }


def count_flagged(ids: Ids, flags: NDArray[np.bool_]) -> int:
    """Return how many tokens' ids have their flag set."""
    return int(_count(read_only(ids), read_only(flags)))


@nb.njit(cache=True, nogil=True)
def _count(ids: NDArray[Any], flags: NDArray[np.bool_]) -> int:
    count = 0
    for token in ids:
        count += flags[token]
    return count


def add_up(counts: Iterable[Mapping[str, Any]]) -> Counts:
    """Return the sums of integers and of length histograms by name."""
    total: Counter[str] = Counter()
    lengths = np.zeros(LENGTH_BUCKETS, dtype=np.int64)
    for one in counts:
        total.update({key: value for key, value in one.items() if key != "length_histogram"})
        lengths += np.array(one.get("length_histogram", 0), dtype=np.int64)
    return {**total, "length_histogram": lengths.tolist()}


def data_card(
    counts: Mapping[str, Any], *, objective: str, max_seq_length: int, duplicate_factor: int
) -> dict[str, float]:
    """Return the shares of one split; a share of nothing is left out.

    fill: tokens of the places that max_seq_length gives. truncation_loss, unpaired_share: tokens
    cut from pairs and tokens without a pair, of all tokens read; used_share: tokens in instances,
    of the same. unknown_rate: [UNK] among the documents' tokens. label_one_share: rows whose
    label is 1. Static masking: mask_rate, of the maskable tokens; mask_share, random_share and
    kept_share, of the masked ones.
    """

    def count(name: str) -> int:
        return int(counts.get(name, 0))

    read = count("tokens_read") + count("tokens_borrowed")
    instances = count("instances")
    parts = {
        "fill": (count("tokens"), instances * max_seq_length),
        "mean_length_tokens": (count("tokens"), instances),
        "used_share": (count("tokens_used"), read),
        "truncation_loss": (count("tokens_truncated"), read),
        "unpaired_share": (count("tokens_unpaired"), read),
        "unknown_rate": (count("unknown_tokens") * duplicate_factor, count("tokens_read")),
    }
    if objective in LABEL_COUNTS:
        parts["label_one_share"] = count(LABEL_COUNTS[objective][1]), instances
    if "masked_tokens" in counts:
        masked = count("masked_tokens")
        parts |= {
            "mask_rate": (masked, count("maskable_tokens")),
            "mask_share": (count("masked_by_mask"), masked),
            "random_share": (count("masked_by_random"), masked),
            "kept_share": (count("masked_kept"), masked),
        }
    return {name: round(part / whole, _DIGITS) for name, (part, whole) in parts.items() if whole}
