"""Encoded documents to the shards of one set of instances: plan, write rows, mask, cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from pipeline.config import InstancesConfig, MaskingConfig, PipelineConfig
from pipeline.contract import LABEL_COUNTS, ShardEntry, shard_schema
from pipeline.data_card import LENGTH_BUCKETS, Counts, add_up, count_flagged, mask_counts
from pipeline.derived_keys import derive_key
from pipeline.document_encoding import EncodingVocabulary, has_word_starts
from pipeline.instance_rows import InstanceRows
from pipeline.instances import EncodedDocuments, InstancePlan, plan_instances, write_instances
from pipeline.keyed_random import permutation
from pipeline.masking import TokenClasses, mask_tokens
from pipeline.shards import write_shard

# Instance numbers of different partitions never meet: a partition has fewer than 2**40 rows.
PARTITION_BITS = 40

Shard = tuple[dict[str, bytes], ShardEntry]
"""Objects by name, and the manifest's entry."""


class SetWriter:
    """Writes one partition's instances of one set, from blocks of its documents.

    Shards have rows_per_shard rows but for the last, wherever blocks end. Instances of a block
    stand in keyed order, so that neighbours are not from one document. At most one shard's rows
    exist at a time, whatever duplicate_factor is.
    """

    def __init__(
        self,
        config: PipelineConfig,
        vocabulary: EncodingVocabulary,
        *,
        max_seq_length: int,
        partition: int,
        split: str,
        name: str,
    ) -> None:
        """Name shards `name`-00000 and so on."""
        self._config = config
        self._vocabulary = vocabulary
        self._max_seq_length = max_seq_length
        self._partition = partition
        self._split = split
        self._name = name
        self._schema = shard_schema(
            # What the vocabulary has, which may be less than what was asked for.
            vocab_size=len(vocabulary.entries),
            objective=config.instances.objective,
            word_starts=has_word_starts(config.documents.sources),
            static_masking=config.masking.mode == "static",
            sources=len(config.documents.sources),
        )
        self._blocks = 0
        self._shards = 0
        self._rows = 0  # in shards
        self._waiting: list[InstanceRows] = []  # rows of the next shard
        self._counts: list[Counts] = []

    @property
    def counts(self) -> Counts:
        """What was counted so far."""
        return add_up(self._counts)

    def add(self, documents: EncodedDocuments) -> Iterator[Shard]:
        """Take the next block of documents and yield the shards that it fills."""
        plan, counts = plan_block(
            documents,
            self._config.instances,
            self._vocabulary,
            max_seq_length=self._max_seq_length,
            seed=self._config.seed,
        )
        self._counts.append(counts)
        order = permutation(
            plan.instances,
            derive_key(self._config.seed, "order", "shards"),
            stream=self._blocks,
            identity=self._partition,
        )
        self._blocks += 1
        rows_per_shard = self._config.instances.rows_per_shard
        while order.size:
            room = rows_per_shard - sum(piece.rows for piece in self._waiting)
            rows = write_instances(
                plan,
                documents,
                order[:room],
                cls_id=self._vocabulary.special_ids["[CLS]"],
                sep_id=self._vocabulary.special_ids["[SEP]"],
            )
            self._waiting.append(rows)
            order = order[room:]
            if rows.rows == room:
                yield self._shard()

    def finish(self) -> Iterator[Shard]:
        """Yield the last shard, if there are rows left for one."""
        if self._waiting:
            yield self._shard()

    def _shard(self) -> Shard:
        rows = InstanceRows.concatenate(self._waiting)
        self._waiting = []
        first = (self._partition << PARTITION_BITS) + self._rows
        if self._config.masking.mode == "static":
            rows = mask_statically(
                rows,
                self._config.masking,
                seed=self._config.seed,
                first=first,
                split=self._split,
                classes=self._vocabulary.classes,
            )
            self._counts.append(mask_counts(rows, self._vocabulary.classes))
        shard = write_shard(
            rows,
            self._schema,
            name=f"{self._name}-{self._shards:05d}",
            split=self._split,
            start=0,
            end=rows.rows,
            rows_per_batch=self._config.instances.rows_per_batch,
            first_instance=first,
            compression=self._config.instances.compression,
        )
        self._shards += 1
        self._rows += rows.rows
        return shard


def plan_block(
    documents: EncodedDocuments,
    config: InstancesConfig,
    vocabulary: EncodingVocabulary,
    *,
    max_seq_length: int,
    seed: int,
) -> tuple[InstancePlan, Counts]:
    """Plan every repetition of some documents for one set and count what the plan tells."""
    plan = plan_instances(
        documents,
        objective=config.objective,
        seed=seed,
        repetitions=range(config.duplicate_factor),
        max_seq_length=max_seq_length,
        short_seq_prob=config.short_seq_prob,
    )
    lengths = plan.lengths()
    # The last bucket holds max_seq_length itself.
    buckets = np.minimum(lengths * LENGTH_BUCKETS // max_seq_length, LENGTH_BUCKETS - 1)
    counts: Counts = {
        **dataclasses.asdict(plan.counts),
        "instances": plan.instances,
        "tokens": int(lengths.sum()),
        "unknown_tokens": int(np.count_nonzero(documents.ids == vocabulary.special_ids["[UNK]"])),
        "length_histogram": np.bincount(buckets, minlength=LENGTH_BUCKETS).tolist(),
    }
    if documents.word_starts is None:
        # No segmenter says which of them make a word.
        counts["ideograph_tokens"] = count_flagged(documents.ids, vocabulary.is_ideograph)
    if plan.pair_labels is not None:
        ones = int(np.count_nonzero(plan.pair_labels))
        zero_name, one_name = LABEL_COUNTS[config.objective]
        counts |= {zero_name: plan.instances - ones, one_name: ones}
    return plan, counts


def mask_statically(
    rows: InstanceRows,
    rules: MaskingConfig,
    *,
    seed: int,
    first: int,
    split: str,
    classes: TokenClasses,
) -> InstanceRows:
    """Return the rows, numbered from `first`, with their masks written into them."""
    purpose: Literal["mask", "evaluation_mask"] = "mask" if split == "train" else "evaluation_mask"
    masked = mask_tokens(
        rows.input_ids,
        rows.offsets,
        np.arange(first, first + rows.rows, dtype=np.uint64),
        seed=seed,
        purpose=purpose,
        epoch=0,
        repetition=0,
        rules=rules,
        classes=classes,
        word_starts=rows.word_starts,
    )
    row_starts = np.repeat(rows.offsets[:-1], np.diff(masked.row_offsets))
    changed: dict[str, Any] = {
        "input_ids": masked.input_ids,
        "masked_positions": (masked.positions - row_starts).astype(np.uint16),
        "masked_offsets": masked.row_offsets,
        "masked_lm_ids": masked.masked_lm_ids,
    }
    return dataclasses.replace(rows, **changed)
