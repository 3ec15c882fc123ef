"""The instances job: one documents partition -> encoded, paired, (masked,) shuffled, in shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.commit import Generation, current, require_same_identity
from pipeline.config import PipelineConfig
from pipeline.contract import ObjectEntry, fingerprint, shard_schema
from pipeline.encoding import WordPieceEncoder
from pipeline.errors import InputError
from pipeline.identity import (
    documents_identity,
    instances_identity,
    masking_identity,
    vocabulary_identity,
)
from pipeline.instances import EncodedDocuments, Instances, build_nsp_instances
from pipeline.jobs.cluster import run_units
from pipeline.jobs.vocabulary import (
    NORMALIZATION,
    TOKENIZER_JSON,
    VOCAB_TXT,
    WORD_TABLE,
    read_table,
)
from pipeline.keyed_random import derive_key, permutation
from pipeline.masking import TokenClasses, mask_tokens, token_classes
from pipeline.merge import read_documents
from pipeline.ragged import take_rows
from pipeline.shards import InstanceRows, write_shard
from pipeline.stage import Stage
from pipeline.vocabulary import NormalizationTable, read_vocab

# Instance numbers of different partitions never meet: a partition has fewer than 2**40 rows.
_PARTITION_BITS = 40
# Buckets of the length histogram, as shares of max_seq_length.
_LENGTH_BUCKETS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """What every unit of the job needs to know; picklable."""

    generation: Generation
    documents: Generation
    vocabulary: Generation
    vocabulary_manifest: Mapping[str, Any]
    config: PipelineConfig

    def vocabulary_bytes(self, name: str) -> bytes:
        """Read one of the vocabulary stage's artefacts, verified."""
        return self.vocabulary.read(ObjectEntry(**self.vocabulary_manifest["objects"][name]))

    def vocabulary_table(self, name: str) -> pa.Table:
        """Read one of its Arrow tables, verified."""
        return read_table(self.vocabulary, ObjectEntry(**self.vocabulary_manifest["objects"][name]))


def run(config: PipelineConfig) -> dict[str, Any]:
    """Run the stage or find it done; returns its manifest."""
    texts, texts_manifest = current(config.root, "documents", "python -m pipeline documents")
    require_same_identity(
        texts,
        texts_manifest["identity"],
        documents_identity(config),
        "python -m pipeline documents",
    )
    words, words_manifest = current(config.root, "vocabulary", "python -m pipeline vocabulary")
    require_same_identity(
        words,
        {**words_manifest["identity"], "documents": words_manifest["inputs"]["documents"]},
        {**vocabulary_identity(config), "documents": texts.fingerprint},
        "python -m pipeline vocabulary",
    )
    inputs = {"documents": texts.fingerprint, "vocabulary": words.fingerprint}
    generation = Generation(
        config.root,
        "instances",
        fingerprint("instances", identity=instances_identity(config), inputs=inputs),
    )
    with Stage(generation) as stage:
        if stage.manifest is not None:
            return stage.manifest
        plan = Plan(generation, texts, words, words_manifest, config)
        units = [
            {
                "marker": f"build/{number:06d}",
                "partition": number,
                "name": file["object"]["name"].removesuffix(".arrow"),
                "split": file["split"],
                "object": file["object"],
                "bytes": file["text_bytes"],
            }
            for number, file in enumerate(texts_manifest["files"])
        ]
        built = run_units(
            stage,
            partial(build_unit, plan),
            units,
            description="instances: encode and pair",
            workers=config.cluster.workers,
        )
        counts = {
            split: _add_up([facts["counts"] for facts in built if facts["split"] == split])
            for split in ("train", "held_out")
        }
        _require_pairs(counts["train"])
        tokenizer = {TOKENIZER_JSON: "tokenizer_json", VOCAB_TXT: "vocab_txt"}
        copies = {name: plan.vocabulary_bytes(name) for name in tokenizer}
        generation.complete("tokenizer", copies, {})
        return stage.commit(
            {
                "counts": counts,
                "identity": instances_identity(config),
                "inputs": inputs,
                "made_from": {**documents_identity(config), **vocabulary_identity(config)},
                "masking": masking_identity(config),
                "max_seq_length": config.instances.max_seq_length,
                "objective": config.instances.objective,
                "seed": config.seed,
                "shards": [shard for facts in built for shard in facts["shards"]],
                "special_ids": words_manifest["special_ids"],
                "tokenizer": {
                    key: words_manifest["objects"][name] for name, key in tokenizer.items()
                },
                "vocab_size": words_manifest["vocab_size"],
            }
        )


def _add_up(counts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    total: Counter[str] = Counter()
    lengths = np.zeros(_LENGTH_BUCKETS, dtype=np.int64)
    for one in counts:
        total.update({key: value for key, value in one.items() if key != "length_histogram"})
        lengths += one["length_histogram"]
    return {**total, "length_histogram": lengths.tolist()}


def _require_pairs(counts: Mapping[str, Any]) -> None:
    """Refuse instances that teach nothing: labels of one kind only."""
    if counts.get("instances", 0) == 0:
        raise InputError(
            f"instances: none from {counts.get('documents', 0)} documents: no document has two "
            "sentences; check how the sources mark documents (a blank line ends one)"
        )
    if counts["random_next"] == 0 or counts["is_next"] == 0:
        kind = "follow" if counts["random_next"] == 0 else "are random"
        raise InputError(
            f"instances: every pair of {counts['instances']} would {kind}: next sentence "
            f"prediction needs several documents of several sentences, there are "
            f"{counts['documents']}; mark documents by blank lines or add text"
        )


def build_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Build every instance of one partition and write its shards."""
    config = plan.config
    table = read_documents(plan.documents.read(ObjectEntry(**unit["object"])))
    encoder = WordPieceEncoder(
        plan.vocabulary_bytes(TOKENIZER_JSON).decode(),
        plan.vocabulary_table(WORD_TABLE),
        NormalizationTable.from_table(plan.vocabulary_table(NORMALIZATION)),
    )
    encoded = encode_documents(table, encoder)
    special = plan.vocabulary_manifest["special_ids"]
    counts: Counter[str] = Counter()
    repetitions = []
    for repetition in range(config.instances.duplicate_factor):
        instances = build_nsp_instances(
            encoded,
            seed=config.seed,
            repetition=repetition,
            max_seq_length=config.instances.max_seq_length,
            short_seq_prob=config.instances.short_seq_prob,
            cls_id=special["[CLS]"],
            sep_id=special["[SEP]"],
        )
        counts.update(asdict(instances.counts))
        repetitions.append(instances)
    counts["documents"] = table.num_rows
    counts["unknown_tokens"] = int(np.count_nonzero(encoded.ids == special["[UNK]"]))
    rows = _shuffled(repetitions, config.seed, unit["partition"])
    first = unit["partition"] << _PARTITION_BITS
    if config.masking.mode == "static":
        vocabulary_entries = read_vocab(plan.vocabulary_bytes(VOCAB_TXT))
        classes = token_classes(vocabulary_entries, sorted(special.values()))
        rows = _masked(rows, config, classes, first, unit["split"])
        counts["masked_tokens"] = _size(rows.masked_positions)
    counts["instances"] = rows.rows
    counts["tokens"] = int(rows.offsets[-1])
    objects: dict[str, bytes] = {}
    shards: list[dict[str, Any]] = []
    schema = shard_schema(
        vocab_size=plan.vocabulary_manifest["vocab_size"],
        static_masking=config.masking.mode == "static",
    )
    for number, start in enumerate(range(0, rows.rows, config.instances.rows_per_shard)):
        written, entry = write_shard(
            rows,
            schema,
            name=f"{unit['name']}-{number:05d}",
            split=unit["split"],
            start=start,
            end=min(start + config.instances.rows_per_shard, rows.rows),
            rows_per_batch=config.instances.rows_per_batch,
            first_instance=first + start,
        )
        objects |= written
        shards.append(entry.to_json())
    limit = config.instances.max_seq_length
    histogram, _ = np.histogram(np.diff(rows.offsets), bins=_LENGTH_BUCKETS, range=(0, limit))
    facts = {
        "counts": {**counts, "length_histogram": histogram.tolist()},
        "shards": shards,
        "split": unit["split"],
    }
    plan.generation.complete(unit["marker"], objects, facts)
    return facts


def encode_documents(table: pa.Table, encoder: WordPieceEncoder) -> EncodedDocuments:
    """Encode a partition of documents; the arrays are those of EncodedDocuments."""
    sentences = table["sentences"].combine_chunks()
    encoded = encoder.encode(sentences.flatten())
    document_offsets = np.asarray(sentences.offsets).astype(np.int64)
    hashes = b"".join(table["document_hash"].to_pylist())
    return EncodedDocuments(
        ids=encoded.ids,
        sentence_offsets=encoded.offsets,
        document_offsets=document_offsets - document_offsets[0],
        document_hashes=np.frombuffer(hashes, "<u8")[::2].copy(),
    )


def _shuffled(repetitions: Sequence[Instances], seed: int, partition: int) -> InstanceRows:
    """Put a partition's instances in keyed order: neighbours are not from one document."""
    offsets = [np.zeros(1, dtype=np.int64)]
    for one in repetitions:
        offsets.append(one.offsets[1:] + offsets[-1][-1])
    count = sum(one.offsets.size - 1 for one in repetitions)
    order = permutation(count, derive_key(seed, "order", "shards"), identity=partition)
    ids, row_offsets = take_rows(
        np.concatenate([one.input_ids for one in repetitions]), np.concatenate(offsets), order
    )
    return InstanceRows(
        input_ids=ids,
        offsets=row_offsets,
        first_segment_length=np.concatenate([i.first_segment_length for i in repetitions])[order],
        next_sentence_label=np.concatenate([i.next_sentence_label for i in repetitions])[order],
    )


def _masked(
    rows: InstanceRows,
    config: PipelineConfig,
    classes: TokenClasses,
    first_instance: int,
    split: str,
) -> InstanceRows:
    purpose: Literal["mask", "evaluation_mask"] = "mask" if split == "train" else "evaluation_mask"
    masked = mask_tokens(
        rows.input_ids,
        rows.offsets,
        np.arange(first_instance, first_instance + rows.rows, dtype=np.uint64),
        seed=config.seed,
        purpose=purpose,
        epoch=0,
        repetition=0,
        rules=config.masking,
        classes=classes,
    )
    row_starts = np.repeat(rows.offsets[:-1], np.diff(masked.row_offsets))
    return InstanceRows(
        input_ids=masked.input_ids,
        offsets=rows.offsets,
        first_segment_length=rows.first_segment_length,
        next_sentence_label=rows.next_sentence_label,
        masked_positions=(masked.positions - row_starts).astype(np.uint16),
        masked_offsets=masked.row_offsets,
        masked_lm_ids=masked.masked_lm_ids,
    )


def _size(values: NDArray[np.uint16] | None) -> int:
    return 0 if values is None else values.size
