"""Synthetic artefacts of a finished run, as every stage leaves them, for the report's tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.commit import Generation
from pipeline.contract import ObjectEntry, shard_schema
from pipeline.instance_rows import InstanceRows
from pipeline.shards import write_shard
from pipeline.vocabulary import SPECIAL_TOKENS, TextRules, build_tokenizer, vocab_txt

WORDS = ("a", "dictionary", "file", "list", "name", "of", "parse", "return", "the", "##d", "##s")
HOSTILE = ("<script>alert(1)</script>", "x" * 90)
ENTRIES = (*SPECIAL_TOKENS, *WORDS, *HOSTILE)
MAX_SEQ_LENGTH = 32
ENTROPY = 5.5
EVALUATION = {
    "by_source": {},
    "masked_tokens": 800,
    "mlm_accuracy": 0.314,
    "mlm_loss_nats": 4.25,
    "mlm_perplexity": 70.1,
    "pair_accuracy": 0.625,
    "pair_loss": 0.66,
    "pairs": 40,
}
SECONDS = {
    "documents": 12.5,
    "vocabulary": 4.0,
    "instances": 8.25,
    "training": 190.0,
    "export": 1.5,
}
PEAKS = {name: (number + 1) * 1_000_000 for number, name in enumerate(SECONDS)}


def train_record(step: int, attempt: int = 1) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "data_wait_seconds": 0.01,
        "grad_norm": 1.0,
        "kind": "train",
        "learning_rate": 1e-3,
        "mlm_accuracy": 0.1,
        "mlm_loss": 9.0 - 0.01 * step,
        "pair_accuracy": 0.5,
        "pair_loss": 0.7,
        "seconds": 0.1 * step,
        "sequences_seen": 64 * step,
        "step": step,
        "step_seconds": 0.1,
        "tokens_per_second": 60_000.0,
        "tokens_seen": 6_000 * step,
    }


def evaluation_record(step: int) -> dict[str, Any]:
    return {**EVALUATION, "kind": "evaluation", "step": step}


TRAINED = {"evaluation": EVALUATION, "steps": 30}
RECORDS = [train_record(10), train_record(20), train_record(30), evaluation_record(30)]


def commit(
    root: Path,
    stage: str,
    fingerprint: str,
    manifest: Mapping[str, Any],
    seconds: float | None = None,
) -> Generation:
    generation = Generation(str(root), stage, fingerprint)
    run_report = {
        "attempts": 1,
        "cpus": 2,
        "host": "somewhere",
        "peak_rss_bytes": PEAKS[stage],
        "seconds": SECONDS[stage] if seconds is None else seconds,
        "started_unix_seconds": 1_700_000_000.0,
    }
    generation.commit(manifest, run_report)
    return generation


def some_rows(count: int, seed: int) -> InstanceRows:
    """Pairs [CLS] A [SEP] B [SEP] of ordinary tokens, 20 to 32 long."""
    rng = np.random.default_rng(seed)
    rows, firsts = [], []
    for _ in range(count):
        ids = rng.integers(len(SPECIAL_TOKENS), len(ENTRIES), int(rng.integers(20, 33)))
        first = ids.size // 2
        ids[0], ids[first - 1], ids[-1] = 2, 3, 3
        rows.append(ids.astype(np.uint16))
        firsts.append(first)
    return InstanceRows(
        input_ids=np.concatenate(rows),
        offsets=np.cumsum([0, *(row.size for row in rows)], dtype=np.int64),
        first_segment_length=np.array(firsts, np.uint16),
        pair_labels=(np.arange(count) % 2).astype(np.int8),
    )


def write_instances(root: Path) -> None:
    generation = Generation(str(root), "instances", "i1")
    tokenizer = {
        "tokenizer_json": build_tokenizer(ENTRIES, TextRules()).to_str().encode(),
        "vocab_txt": vocab_txt(ENTRIES),
    }
    names = {"tokenizer_json": "tokenizer.json", "vocab_txt": "vocab.txt"}
    shards, counts = [], {}
    objects = {names[key]: data for key, data in tokenizer.items()}
    for number, (split, count) in enumerate((("train", 12), ("held_out", 4))):
        rows = some_rows(count, seed=number)
        written, entry = write_shard(
            rows,
            shard_schema(
                vocab_size=len(ENTRIES), objective="nsp", word_starts=False, static_masking=False
            ),
            name=f"{split}-00000",
            split=split,
            start=0,
            end=count,
            rows_per_batch=8,
            first_instance=number << 40,
        )
        objects |= written
        shards.append(entry.to_json())
        tokens = int(rows.offsets[-1])
        counts[split] = {
            "documents": 3,
            "instances": count,
            "is_next": count // 2,
            "length_histogram": [0] * 10 + [count] + [0] * 5,
            "random_next": count // 2,
            "tokens": tokens,
            "tokens_read": 2_000,
            "unknown_tokens": 5,
        }
    generation.complete("all", objects, {})
    commit(
        root,
        "instances",
        "i1",
        {
            "identity": {"instances": {"duplicate_factor": 2}, "seed": 0},
            "inputs": {"documents": "d1", "vocabulary": "v1"},
            "masking": {"mode": "dynamic"},
            "objective": "nsp",
            "seed": 0,
            "sets": [{"counts": counts, "max_seq_length": MAX_SEQ_LENGTH, "shards": shards}],
            "word_starts": False,
            "sources": ["corpus"],
            "special_ids": {token: number for number, token in enumerate(SPECIAL_TOKENS)},
            "tokenizer": {
                key: asdict(ObjectEntry.of(names[key], data)) for key, data in tokenizer.items()
            },
            "vocab_size": len(ENTRIES),
        },
    )


def write_training(
    root: Path,
    fingerprint: str = "t1",
    records: Sequence[Mapping[str, Any]] = RECORDS,
    **changed: Any,
) -> None:
    generation = Generation(str(root), "training", fingerprint)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    generation.storage.create(generation.name("metrics.jsonl"), lines.encode())
    manifest = {
        "checkpoint": "checkpoints/00000030",
        "evaluation": EVALUATION,
        "identity": {"model": {"hidden_size": 128}, "seed": 0},
        "inputs": {"instances": "i1"},
        "max_seq_length": MAX_SEQ_LENGTH,
        "parameters": 1_234_567,
        "sequences_seen": 1_920,
        "steps": 30,
        "tokens_seen": 180_000,
        "unigram_entropy_nats": ENTROPY,
        **changed,
    }
    commit(root, "training", fingerprint, manifest)


def write_data_stages(root: Path) -> None:
    counts = {
        "dropped_beyond_limit": 1,
        "dropped_duplicate": 4,
        "dropped_too_short": 7,
        "input_bytes": 1_234_000,
        "input_files": 13,
        "kept": 31,
        "read": 43,
        "read_bytes": 1_200_000,
        "sentences": 321,
        "text_bytes": 54_321,
    }
    commit(root, "documents", "d1", {"counts": counts})
    words = {"distinct_words": 777, "words": 9_876}
    commit(root, "vocabulary", "v1", {"counts": words, "vocab_size": len(ENTRIES)})
    write_instances(root)


def write_run(root: Path) -> Path:
    """Lay out a run that was trained and exported."""
    write_data_stages(root)
    write_training(root)
    commit(root, "export", "e1", {"inputs": {"training": "t1"}})
    return root
