"""A small finished run of all three data stages, written by the core without the jobs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.commit import Generation
from pipeline.config import DocumentsConfig, MaskingConfig, SourceConfig
from pipeline.contract import ObjectEntry, shard_schema
from pipeline.corpus import RawDocument
from pipeline.documents import Partitions, split_documents
from pipeline.instance_rows import InstanceRows
from pipeline.masking import mask_tokens, token_classes
from pipeline.merge import write_documents
from pipeline.normalization import TextRules
from pipeline.shards import write_shard
from pipeline.vocabulary import SPECIAL_TOKENS, build_tokenizer, vocab_txt

SEED = 5
CLS, SEP, MASK = (SPECIAL_TOKENS.index(token) for token in ("[CLS]", "[SEP]", "[MASK]"))
VOCABULARY = [
    *SPECIAL_TOKENS,
    *(f"word{n}" for n in range(40)),
    *(f"##piece{n}" for n in range(20)),
]
ROWS_PER_BATCH = 16
RUN_REPORT = {
    "attempts": 1,
    "cpus": 2,
    "host": "somewhere",
    "peak_rss_bytes": 1,
    "seconds": 1.5,
    "started_unix_seconds": 1.5,
    "units": {},
}
FINGERPRINTS = {"documents": "d" * 20, "vocabulary": "5" * 20, "instances": "1" * 20}


HELD_OUT = {
    "coverage": 0.987654,
    "pieces_per_word": 1.25,
    "too_long_words": 0,
    "unknown_rate": None,
    "words": 12345,
}


def random_rows(rows: int, seed: int = 0, vocab_size: int = len(VOCABULARY)) -> InstanceRows:
    """Instances [CLS] A [SEP] B [SEP] of random ordinary tokens, lengths 7 to 40."""
    draw = np.random.default_rng(seed)
    kind = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    ids: list[np.ndarray] = []
    cuts = []
    for _ in range(rows):
        first, second = (
            draw.integers(len(SPECIAL_TOKENS), vocab_size, draw.integers(2, 19)) for _ in range(2)
        )
        ids.append(np.concatenate([[CLS], first, [SEP], second, [SEP]]).astype(kind))
        cuts.append(first.size + 2)
    return InstanceRows(
        input_ids=np.concatenate([*ids, np.zeros(0, kind)]),
        offsets=np.cumsum([0, *map(len, ids)], dtype=np.int64),
        first_segment_length=np.array(cuts, np.uint16),
        pair_labels=draw.integers(0, 2, rows).astype(np.int8),
    )


def masked_rows(rows: InstanceRows, first_instance: int, rules: MaskingConfig) -> InstanceRows:
    """The rows with their masks written into them."""
    masked = mask_tokens(
        rows.input_ids,
        rows.offsets,
        np.arange(first_instance, first_instance + rows.rows, dtype=np.uint64),
        seed=SEED,
        purpose="mask",
        epoch=0,
        repetition=0,
        rules=rules,
        classes=token_classes(VOCABULARY, range(len(SPECIAL_TOKENS))),
    )
    starts = np.repeat(rows.offsets[:-1], np.diff(masked.row_offsets))
    return dataclasses.replace(
        rows,
        input_ids=masked.input_ids,
        masked_positions=(masked.positions - starts).astype(np.uint16),
        masked_offsets=masked.row_offsets,
        masked_lm_ids=masked.masked_lm_ids,
    )


def write_run(root: Path, *, static_rules: MaskingConfig | None = None) -> Path:
    """Commit documents, a vocabulary and instances below `root`; returns it."""
    _write_documents(Generation(str(root), "documents", FINGERPRINTS["documents"]))
    objects = _write_vocabulary(Generation(str(root), "vocabulary", FINGERPRINTS["vocabulary"]))
    generation = Generation(str(root), "instances", FINGERPRINTS["instances"])
    write_instances(generation, objects, static_rules)
    return root


def _write_documents(generation: Generation) -> None:
    source = SourceConfig(name="tests", format="lines", path="unused")
    raw = [RawDocument("a.txt", n, f"Document {n}. Its second sentence.") for n in range(40)]
    partitions = Partitions(train=2, held_out=1)
    config = DocumentsConfig(sources=(source,), held_out_fraction=0.2)
    counts: Counter[str] = Counter()
    chunks = split_documents(raw, 0, config, partitions, SEED, counts)
    table = pa.concat_tables(chunk.documents for chunk in chunks)
    files = []
    for number, name in enumerate(("train-00000", "train-00001", "held_out-00000")):
        mine = table.filter(pa.array(np.asarray(table["partition"]) == number))
        merged = mine.sort_by("document_hash")
        data = write_documents([merged])
        entry = ObjectEntry.of(f"{name}.arrow", data)
        generation.complete(f"merge/{number:06d}", {entry.name: data}, {})
        files.append(
            {
                "object": dataclasses.asdict(entry),
                "split": name.split("-")[0],
                "documents": merged.num_rows,
            }
        )
    generation.complete("split/000000", {"passes/split/000000.run": b"rows of a split"}, {})
    generation.commit(
        {"counts": dict(counts), "files": files, "inputs": {"tests": "0" * 64}}, RUN_REPORT
    )


def _write_vocabulary(generation: Generation) -> dict[str, Any]:
    data = {
        "tokenizer.json": build_tokenizer(VOCABULARY, TextRules()).to_str().encode(),
        "vocab.txt": vocab_txt(VOCABULARY),
    }
    generation.complete("train", data, {})
    objects = {name: dataclasses.asdict(ObjectEntry.of(name, data[name])) for name in data}
    generation.commit(
        {
            "counts": {"words": 1},
            "held_out": {**HELD_OUT, "by_language": {"en": HELD_OUT}, "by_source": {}},
            "inputs": {"documents": FINGERPRINTS["documents"]},
            "objects": objects,
            "vocab_size": len(VOCABULARY),
        },
        RUN_REPORT,
    )
    return objects


def write_instances(
    generation: Generation,
    vocabulary_objects: dict[str, Any],
    static_rules: MaskingConfig | None,
    splits: Sequence[str] = ("train", "train", "held_out"),
) -> None:
    """Commit a shard of 40 instances for each of `splits`."""
    shards = []
    counts: dict[str, dict[str, int]] = {split: {"instances": 0, "tokens": 0} for split in splits}
    schema = shard_schema(
        vocab_size=len(VOCABULARY),
        objective="nsp",
        word_starts=False,
        static_masking=static_rules is not None,
    )
    for number, split in enumerate(splits):
        rows = random_rows(40, seed=number)
        if static_rules is not None:
            rows = masked_rows(rows, number << 40, static_rules)
        objects, entry = write_shard(
            rows,
            schema,
            name=f"{split}-{number:05d}-00000",
            split=split,
            start=0,
            end=rows.rows,
            rows_per_batch=ROWS_PER_BATCH,
            first_instance=number << 40,
        )
        generation.complete(f"build/{number:06d}", objects, {})
        shards.append(entry.to_json())
        counts[split]["instances"] += entry.rows
        counts[split]["tokens"] += entry.tokens
    copies = {
        name: Path(generation.root, "vocabulary", FINGERPRINTS["vocabulary"], name).read_bytes()
        for name in vocabulary_objects
    }
    generation.complete("tokenizer", copies, {})
    generation.commit(
        {
            "inputs": {name: FINGERPRINTS[name] for name in ("documents", "vocabulary")},
            "masking": {"mode": "dynamic" if static_rules is None else "static"},
            "objective": "nsp",
            "seed": SEED,
            "sets": [{"counts": counts, "max_seq_length": 40, "shards": shards}],
            "word_starts": False,
            "sources": ["corpus"],
            "special_ids": {token: number for number, token in enumerate(SPECIAL_TOKENS)},
            "tokenizer": {name.replace(".", "_"): one for name, one in vocabulary_objects.items()},
            "vocab_size": len(VOCABULARY),
        },
        RUN_REPORT,
    )
