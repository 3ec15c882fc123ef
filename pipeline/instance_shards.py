"""One partition of documents to its shards: encode once, plan, then write a shard at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import regex

from pipeline.config import InstancesConfig, MaskingConfig, PipelineConfig, SourceConfig
from pipeline.contract import LABEL_COUNTS, ShardEntry, shard_schema
from pipeline.data_card import LENGTH_BUCKETS, Counts, mask_counts
from pipeline.encoding import WordPieceEncoder
from pipeline.instance_rows import InstanceRows
from pipeline.instances import EncodedDocuments, InstancePlan, plan_instances, write_instances
from pipeline.keyed_random import derive_key, permutation
from pipeline.masking import TokenClasses, mask_tokens
from pipeline.normalization import NormalizationTable
from pipeline.ragged import take_rows
from pipeline.shards import write_shard
from pipeline.word_starts import find_word_starts, is_segmented

# Instance numbers of different partitions never meet: a partition has fewer than 2**40 rows.
PARTITION_BITS = 40

_IDEOGRAPH = regex.compile(r"\p{Script=Han}")


def has_word_starts(sources: Sequence[SourceConfig]) -> bool:
    """Return whether a source's language needs the column word_starts: then all rows have it."""
    return any(is_segmented(source.locale) for source in sources)


def encode_documents(
    table: pa.Table,
    encoder: WordPieceEncoder,
    *,
    sources: Sequence[SourceConfig],
    vocabulary: Sequence[str],
    normalization: NormalizationTable,
    classes: TokenClasses,
    special_ids: Mapping[str, int],
) -> EncodedDocuments:
    """Encode a partition of documents, with word_starts where a source's language needs them."""
    sentences = table["sentences"].combine_chunks()
    text = sentences.flatten()
    encoded = encoder.encode(text)
    document_offsets = np.asarray(sentences.offsets).astype(np.int64)
    document_offsets -= document_offsets[0]
    hashes = b"".join(table["document_hash"].to_pylist())
    documents = EncodedDocuments(
        ids=encoded.ids,
        sentence_offsets=encoded.offsets,
        document_offsets=document_offsets,
        document_hashes=np.frombuffer(hashes, "<u8")[::2].copy(),
    )
    if not has_word_starts(sources):
        return documents
    word_starts = ~classes.continuation[documents.ids]
    locale_of = {source.name: source.locale for source in sources}
    names = [key.split("/", 1)[0] for key in table["document_key"].to_pylist()]
    locales = np.array([locale_of[name] for name in names], dtype=np.str_)
    for locale in sorted({one for one in locale_of.values() if is_segmented(one)}):
        rows = np.flatnonzero(np.repeat(locales == locale, np.diff(document_offsets)))
        if rows.size == 0:
            continue
        ids, offsets = take_rows(documents.ids, documents.sentence_offsets, rows)
        found = find_word_starts(
            text.take(pa.array(rows)),
            ids,
            offsets,
            locale=locale,
            vocabulary=vocabulary,
            unk_id=special_ids["[UNK]"],
            normalization=normalization,
        )
        moved = np.repeat(documents.sentence_offsets[rows] - offsets[:-1], np.diff(offsets))
        word_starts[np.arange(ids.size) + moved] = found
    return dataclasses.replace(documents, word_starts=word_starts)


def count_ideographs(documents: EncodedDocuments, vocabulary: Sequence[str]) -> Counts:
    """Count tokens that are ideographs, where no segmenter says which of them make a word."""
    if documents.word_starts is not None:
        return {}
    is_ideograph = np.array([bool(_IDEOGRAPH.fullmatch(entry)) for entry in vocabulary])
    return {"ideograph_tokens": int(np.count_nonzero(is_ideograph[documents.ids]))}


def plan_partition(
    documents: EncodedDocuments,
    config: InstancesConfig,
    *,
    max_seq_length: int,
    seed: int,
    special_ids: Mapping[str, int],
) -> tuple[InstancePlan, Counts]:
    """Plan every repetition of a partition for one set and count what the plan tells."""
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
        "unknown_tokens": int(np.count_nonzero(documents.ids == special_ids["[UNK]"])),
        "length_histogram": np.bincount(buckets, minlength=LENGTH_BUCKETS).tolist(),
    }
    if plan.pair_labels is not None:
        ones = int(np.count_nonzero(plan.pair_labels))
        zero_name, one_name = LABEL_COUNTS[config.objective]
        counts |= {zero_name: plan.instances - ones, one_name: ones}
    return plan, counts


def write_partition(
    documents: EncodedDocuments,
    plan: InstancePlan,
    config: PipelineConfig,
    *,
    partition: int,
    split: str,
    name: str,
    classes: TokenClasses,
    special_ids: Mapping[str, int],
) -> Iterator[tuple[dict[str, bytes], ShardEntry, Counts]]:
    """Yield each shard's objects by name, its manifest entry and what masking counted in it.

    Instances stand in keyed order, so that neighbours are not from one document. Only one shard's
    rows exist at a time, whatever duplicate_factor is.
    """
    instances = config.instances
    schema = shard_schema(
        # What the vocabulary has, which may be less than what was asked for.
        vocab_size=classes.maskable.size,
        objective=instances.objective,
        word_starts=documents.word_starts is not None,
        static_masking=config.masking.mode == "static",
    )
    order = permutation(
        plan.instances, derive_key(config.seed, "order", "shards"), identity=partition
    )
    for number, start in enumerate(range(0, plan.instances, instances.rows_per_shard)):
        rows = write_instances(
            plan,
            documents,
            order[start : start + instances.rows_per_shard],
            cls_id=special_ids["[CLS]"],
            sep_id=special_ids["[SEP]"],
        )
        first = (partition << PARTITION_BITS) + start
        counts: Counts = {}
        if config.masking.mode == "static":
            rows = mask_statically(
                rows, config.masking, seed=config.seed, first=first, split=split, classes=classes
            )
            counts = mask_counts(rows, classes)
        objects, entry = write_shard(
            rows,
            schema,
            name=f"{name}-{number:05d}",
            split=split,
            start=0,
            end=rows.rows,
            rows_per_batch=instances.rows_per_batch,
            first_instance=first,
            compression=instances.compression,
        )
        yield objects, entry, counts


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
