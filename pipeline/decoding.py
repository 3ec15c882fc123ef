"""An instance as a person reads it: words of A and B, and what masking did to each token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.config import MaskingConfig
from pipeline.instance_rows import InstanceRows
from pipeline.instance_set import InstanceSet
from pipeline.masking import mask_tokens
from pipeline.vocabulary import read_vocab

Kind = Literal["plain", "special", "mask", "random", "kept"]


@dataclass(frozen=True, slots=True)
class DecodedToken:
    """One token as the model sees it; `original` where it is to be predicted."""

    text: str
    kind: Kind
    original: str = ""

    def __str__(self) -> str:
        """Show a predicted token as {seen <- original}, {original} where it was kept."""
        if self.kind in ("mask", "random"):
            return f"{{{self.text} <- {self.original}}}"
        return f"{{{self.original}}}" if self.kind == "kept" else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedInstance:
    """One instance; `second_segment` is empty where the objective has no pairs."""

    number: int
    label: int | None
    """next_sentence_label or sentence_order_label; None where the objective has no pairs."""
    first_segment: tuple[DecodedToken, ...]
    second_segment: tuple[DecodedToken, ...]

    @property
    def tokens(self) -> int:
        """Tokens of both segments, special tokens included."""
        return len(self.first_segment) + len(self.second_segment)


def decode_instances(
    instances: InstanceSet, split: str, count: int, rules: MaskingConfig, epoch: int
) -> Iterator[DecodedInstance]:
    """Decode a split's first `count` instances, masked as in `epoch` where masks are dynamic."""
    vocabulary = read_vocab(instances.vocab_txt)
    for shard in instances.shards(split):
        first = shard.first_instance
        for number in range(len(shard.batch_rows)):
            if count <= 0:
                return
            rows = instances.read_rows(shard, number)
            taken = min(count, rows.rows)
            yield from _decode(instances, vocabulary, rows, taken, first, split, rules, epoch)
            count -= taken
            first += rows.rows


def _decode(
    instances: InstanceSet,
    vocabulary: Sequence[str],
    rows: InstanceRows,
    count: int,
    first: int,
    split: str,
    rules: MaskingConfig,
    epoch: int,
) -> Iterator[DecodedInstance]:
    if rows.masked_offsets is None:
        masked = mask_tokens(
            rows.input_ids,
            rows.offsets,
            np.arange(first, first + rows.rows, dtype=np.uint64),
            seed=instances.manifest["seed"],
            purpose="mask" if split == "train" else "evaluation_mask",
            epoch=epoch,
            repetition=0,
            rules=rules,
            classes=instances.token_classes,
            word_starts=rows.word_starts,
        )
        ids, row_offsets, originals = masked.input_ids, masked.row_offsets, masked.masked_lm_ids
        positions = masked.positions
    else:
        assert rows.masked_lm_ids is not None  # the three columns come together
        ids, row_offsets, originals = rows.input_ids, rows.masked_offsets, rows.masked_lm_ids
        positions = rows.flat_masked_positions()
    special = set(instances.special_ids.values())
    mask_id = instances.special_ids["[MASK]"]
    for row in range(count):
        start, end = int(rows.offsets[row]), int(rows.offsets[row + 1])
        span = slice(int(row_offsets[row]), int(row_offsets[row + 1]))
        hidden = dict(zip(positions[span].tolist(), originals[span].tolist(), strict=True))
        tokens = [
            _token(vocabulary, int(ids[index]), hidden.get(index), special, mask_id)
            for index in range(start, end)
        ]
        cut = int(rows.first_segment_length[row])
        yield DecodedInstance(
            number=first + row,
            label=None if rows.pair_labels is None else int(rows.pair_labels[row]),
            first_segment=tuple(tokens[:cut]),
            second_segment=tuple(tokens[cut:]),
        )


def _token(
    vocabulary: Sequence[str], seen: int, original: int | None, special: set[int], mask_id: int
) -> DecodedToken:
    if original is None:
        return DecodedToken(vocabulary[seen], "special" if seen in special else "plain")
    kind: Kind = "mask" if seen == mask_id else "kept" if seen == original else "random"
    return DecodedToken(vocabulary[seen], kind, vocabulary[original])


def spaced(tokens: Sequence[DecodedToken]) -> str:
    """Join tokens into a line, ## pieces to the word before them where neither is masked."""
    text = ""
    for token in tokens:
        shown = str(token)
        joined = token.kind == "plain" and shown.startswith("##") and not text.endswith("}")
        text += shown[2:] if joined else f" {shown}"
    return text.strip()
