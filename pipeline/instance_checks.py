"""Instances that teach nothing are refused, and what is seldom meant is warned of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from pipeline.config import MaskingConfig, PipelineConfig
from pipeline.contract import LABEL_COUNTS
from pipeline.document_keys import are_held_out, repeated_key
from pipeline.errors import CorruptError, InputError

# Share of ideographs among the tokens from which on a corpus counts as one with Chinese in it.
_IDEOGRAPH_SHARE = 0.01

# Documents of a block whose split is drawn again: a microsecond each.
_CHECKED_DOCUMENTS = 10_000

# How far from what was asked for the share of masked tokens, or of [MASK] among them, may be: a
# third, so that 15 % may be 10 to 20.
_MASK_TOLERANCE = 1 / 3
_FEW_MASKED_TOKENS = 1_000

# Share of the documents whose pairs may all have one label.
_ALONE_SHARE = 0.01


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
        kind = "follow" if ones == 0 else "be random"
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


def require_split(documents: pa.Table, split: str, config: PipelineConfig, where: str) -> int:
    """Raise CorruptError if documents of `split` belong to the other one; returns how many it saw.

    Which split a document is in its key alone decides, so that none is in both.
    """
    step = -(-documents.num_rows // _CHECKED_DOCUMENTS) or 1
    keys = [repeated_key(key, 0) for key in documents["document_key"].to_pylist()[::step]]
    held_out = are_held_out(keys, config.documents.held_out_fraction, config.seed)
    for key, found in zip(keys, held_out.tolist(), strict=True):
        if found != (split == "held_out"):
            raise CorruptError(
                f"{where}: document {key} is not one of the {split} documents: training and "
                "evaluation would share it; remove this generation and run the stage again"
            )
    return len(keys)


def mask_warnings(counts: Mapping[str, Any], rules: MaskingConfig) -> Iterator[str]:
    """Yield what the counts of masked rows (data_card.mask_counts) have other than `rules` ask."""
    instances, maskable = counts["instances"], counts["maskable_tokens"]
    masked, by_mask = counts["masked_tokens"], counts["masked_by_mask"]
    limit = rules.max_predictions_per_seq or maskable
    wanted = min(rules.probability * maskable, limit * instances)
    # An exact amount is rounded in every instance, and is one token at least.
    if abs(masked - wanted) > _MASK_TOLERANCE * wanted + instances:
        yield (
            f"masking.probability = {rules.probability}: {masked / max(maskable, 1):.1%} of the "
            f"maskable tokens are masked, not about {wanted / max(maskable, 1):.1%}: words longer "
            "than an instance's share of masks are taken whole or not at all; look at the "
            "instances with `python -m pipeline inspect`"
        )
    share = by_mask / masked if masked else 0.0
    if (
        masked >= _FEW_MASKED_TOKENS
        and abs(share - rules.mask_share) > _MASK_TOLERANCE * rules.mask_share
    ):
        yield (
            f"masking.mask_share = {rules.mask_share}: [MASK] stands for {share:.1%} of the masked "
            "tokens; a token of the text is taken for [MASK], or none is"
        )


def warnings_of(config: PipelineConfig, counts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for everything in the training instances that is seldom meant."""
    short = counts["documents_one_sentence"] + counts["documents_empty"]
    if 2 * short > counts["documents"]:
        yield (
            f"{short:,} of {counts['documents']:,} documents have fewer than two sentences and "
            "make no pair: check how the sources mark documents"
        )
    alone = counts["documents_alone"]
    if alone > _ALONE_SHARE * counts["documents_used"]:
        yield (
            f"{alone:,} of {counts['documents_used']:,} documents with pairs have no other beside "
            "them to draw a random B from: in all their pairs B follows A; lower "
            "documents.partitions or add text"
        )
    limit = config.masking.max_predictions_per_seq
    wanted = config.masking.probability * counts["tokens"] / counts["instances"]
    if 0 < limit < 0.9 * wanted:
        yield (
            f"masking.max_predictions_per_seq = {limit} caps the {wanted:.0f} tokens that "
            f"masking.probability = {config.masking.probability} would mask of an instance: "
            f"{limit * counts['instances'] / counts['tokens']:.1%} of the tokens at most"
        )
    if config.masking.mode == "static":
        yield from mask_warnings(counts, config.masking)
    ideographs = counts.get("ideograph_tokens", 0)  # counted once, tokens for each repetition
    read_once = counts["tokens_read"] / config.instances.duplicate_factor
    if config.masking.unit != "token" and ideographs > _IDEOGRAPH_SHARE * read_once:
        yield (
            f"masking.unit = {config.masking.unit!r}: {ideographs:,} tokens are ideographs, each "
            'a word of its own here; set locale = "zh" or "ja" of their sources for ICU\'s words'
        )
