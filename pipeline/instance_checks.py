"""Instances that teach nothing are refused, and what is seldom meant is warned of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config import PipelineConfig
from pipeline.contract import LABEL_COUNTS
from pipeline.errors import InputError

# Share of ideographs among the tokens from which on a corpus counts as one with Chinese in it.
_IDEOGRAPH_SHARE = 0.01


def require_instances(counts: Mapping[str, Any], objective: str) -> None:
    """Raise InputError where the training instances are none, or have labels of one kind only."""
    if counts.get("instances", 0) == 0:
        why = "no document has two sentences" if objective in LABEL_COUNTS else "all are empty"
        raise InputError(
            f"instances: none from {counts.get('documents', 0)} documents: {why}; "
            "check how the sources mark documents (a blank line ends one)"
        )
    if objective not in LABEL_COUNTS:
        return
    zeros, ones = (counts[name] for name in LABEL_COUNTS[objective])
    if zeros and ones:
        return
    if objective == "nsp":
        kind = "follow" if ones == 0 else "are random"
        raise InputError(
            f"instances: every pair of {counts['instances']} would {kind}: next sentence "
            f"prediction needs several documents of several sentences, there are "
            f"{counts['documents']}; mark documents by blank lines or add text"
        )
    kind = "in order" if ones == 0 else "swapped"
    raise InputError(
        f"instances: every pair of {counts['instances']} would be {kind}: too few to teach "
        "sentence order; add text"
    )


def warnings_of(config: PipelineConfig, counts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for everything in the training instances that is seldom meant."""
    short = counts["documents_one_sentence"] + counts["documents_empty"]
    if 2 * short > counts["documents"]:
        yield (
            f"{short:,} of {counts['documents']:,} documents have fewer than two sentences and "
            "make no pair: check how the sources mark documents"
        )
    limit = config.masking.max_predictions_per_seq
    wanted = config.masking.probability * counts["tokens"] / counts["instances"]
    if 0 < limit < 0.9 * wanted:
        yield (
            f"masking.max_predictions_per_seq = {limit} caps the {wanted:.0f} tokens that "
            f"masking.probability = {config.masking.probability} would mask of an instance: "
            f"{limit * counts['instances'] / counts['tokens']:.1%} of the tokens at most"
        )
    ideographs = counts.get("ideograph_tokens", 0)  # counted once, tokens for each repetition
    read_once = counts["tokens_read"] / config.instances.duplicate_factor
    if config.masking.unit != "token" and ideographs > _IDEOGRAPH_SHARE * read_once:
        yield (
            f"masking.unit = {config.masking.unit!r}: {ideographs:,} tokens are ideographs, each "
            'a word of its own here; set locale = "zh" or "ja" of their sources for ICU\'s words'
        )
