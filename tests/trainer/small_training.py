"""Whole trainings of one process over small instance sets of one or several lengths."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.commit import Generation
from pipeline.config import MaskingConfig, from_table
from pipeline.contract import ObjectEntry, Objective, shard_schema
from pipeline.instance_rows import InstanceRows
from pipeline.instance_set import InstanceSet
from pipeline.masking import mask_tokens, token_classes
from pipeline.normalization import TextRules
from pipeline.shards import write_shard
from pipeline.vocabulary import SPECIAL_TOKENS, build_tokenizer, vocab_txt
from trainer.checkpoint import latest, load
from trainer.config import TrainerConfig
from trainer.journal import read_journal
from trainer.pretrain import pretrain
from trainer.ranks import Worker
from trainer.run_plan import open_sources

VOCABULARY = [
    *SPECIAL_TOKENS,
    *(f"##piece{number}" if number % 4 == 3 else f"word{number}" for number in range(40)),
]
CLS, SEP = (SPECIAL_TOKENS.index(one) for one in ("[CLS]", "[SEP]"))
WORDS = range(len(SPECIAL_TOKENS), len(VOCABULARY))
CPU = Worker(0, 1, torch.device("cpu"), None)


def make_rows(
    count: int,
    length: int,
    *,
    seed: int = 0,
    pairs: bool = True,
    noise: Sequence[int] = (),
) -> InstanceRows:
    """Rows of at most `length` tokens that a model can learn: a word follows its neighbour.

    The rows `noise` are random words of the half of the vocabulary that no other row has.
    """
    half = len(WORDS) // 2
    draw = np.random.default_rng(seed)
    ids, offsets, first_lengths = [], [0], []
    for row in range(count):
        size = int(draw.integers(length // 2, length + 1))
        words = (int(draw.integers(half)) + np.arange(size)) % half + WORDS.start
        if row in noise:
            words = draw.integers(WORDS.start + half, WORDS.stop, size)
        split = size // 2 if pairs else size - 1
        words[0], words[split], words[-1] = CLS, SEP, SEP
        ids.append(words)
        offsets.append(offsets[-1] + size)
        first_lengths.append(split + 1 if pairs else size)
    return InstanceRows(
        input_ids=np.concatenate(ids).astype(np.uint16),
        offsets=np.array(offsets, np.int64),
        first_segment_length=np.array(first_lengths, np.uint16),
        pair_labels=np.arange(count).astype(np.int8) % 2 if pairs else None,
    )


def masked(rows: InstanceRows, rules: MaskingConfig) -> InstanceRows:
    """Rows with their masks, as the shards of static masking have them."""
    found = mask_tokens(
        rows.input_ids,
        rows.offsets,
        np.arange(rows.rows, dtype=np.uint64),
        seed=0,
        purpose="mask",
        epoch=0,
        repetition=0,
        rules=rules,
        classes=token_classes(VOCABULARY, range(len(SPECIAL_TOKENS))),
    )
    starts = np.repeat(rows.offsets[:-1], np.diff(found.row_offsets))
    return dataclasses.replace(
        rows,
        input_ids=found.input_ids,
        masked_positions=(found.positions - starts).astype(np.uint16),
        masked_offsets=found.row_offsets,
        masked_lm_ids=found.masked_lm_ids,
    )


def commit_sets(
    root: Path,
    sets: Mapping[int, Mapping[str, InstanceRows]],
    *,
    objective: Objective = "nsp",
    rows_per_batch: int = 8,
    static_rules: MaskingConfig | None = None,
    sources: Sequence[str] = ("corpus",),
) -> InstanceSet:
    """Commit one generation with a set for each length, a shard for each split; return the first.

    Reads as what `python -m pipeline run` with those lengths makes; with rules the masks are in it.
    """
    generation = Generation(str(root), "instances", "0123456789abcdef0123")
    schema = shard_schema(
        vocab_size=len(VOCABULARY),
        objective=objective,
        word_starts=False,
        static_masking=bool(static_rules),
        sources=len(sources),
    )
    entries: dict[int, list[dict[str, Any]]] = {}
    for length, splits in sets.items():
        first = 0
        for split, rows in splits.items():
            objects, entry = write_shard(
                masked(rows, static_rules) if static_rules else rows,
                schema,
                name=f"shards/{length}/{split}",
                split=split,
                start=0,
                end=rows.rows,
                rows_per_batch=rows_per_batch,
                first_instance=first,
            )
            generation.complete(f"build/{length}-{split}", objects, {})
            entries.setdefault(length, []).append(entry.to_json())
            first += rows.rows
    tokenizer = build_tokenizer(VOCABULARY, TextRules())
    copies = {"tokenizer.json": tokenizer.to_str().encode(), "vocab.txt": vocab_txt(VOCABULARY)}
    generation.complete("tokenizer", copies, {})
    generation.commit(
        {
            "masking": {"mode": "static" if static_rules else "dynamic"},
            "objective": objective,
            "seed": 0,
            "sets": [{"max_seq_length": one, "shards": entries[one]} for one in sorted(sets)],
            "sources": list(sources),
            "special_ids": {token: number for number, token in enumerate(SPECIAL_TOKENS)},
            "tokenizer": {
                name.replace(".", "_"): asdict(ObjectEntry.of(name, data))
                for name, data in copies.items()
            },
            "vocab_size": len(VOCABULARY),
            "word_starts": False,
        },
        {},
    )
    return InstanceSet.all_of(generation, generation.manifest() or {})[0]


def two_lengths(root: Path, objective: Any = "nsp") -> InstanceSet:
    pairs = objective == "nsp"
    return commit_sets(
        root,
        {
            length: {
                "train": make_rows(rows, length, pairs=pairs),
                "held_out": make_rows(16, length, seed=1, pairs=pairs),
            }
            for length, rows in ((16, 96), (32, 64))
        },
        objective=objective,
    )


PHASES: dict[str, Any] = {
    "instances": {"max_seq_length": [16, 32]},
    "phases": [
        {"max_seq_length": 16, "share": 0.75},
        {"max_seq_length": 32, "share": 0.25, "batch_size": 4, "learning_rate": 5e-3},
    ],
}


TINY_MODEL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
}


def small_config(root: Path, **tables: Any) -> TrainerConfig:
    """A config of tiny sizes; each table of `tables` is laid over its own."""
    training = {
        "total_steps": 12,
        "batch_size": 8,
        "micro_batch_size": 4,
        "lanes": 2,
        "log_steps": 1,
        "workers": 1,
        "checkpoint_seconds": 0.0,
        "keep_checkpoints": 100,
    }
    table: dict[str, Any] = {
        "root": str(root),
        "instances": {"max_seq_length": 32},
        "model": TINY_MODEL,
        "optimizer": {"learning_rate": 1e-2},
        "schedule": {"warmup_steps": 2},
        "training": training,
        "evaluation": {"batch_size": 16},
    }
    for name, changed in tables.items():
        below = table.get(name)
        table[name] = {**below, **changed} if isinstance(below, dict) else changed
    return from_table(TrainerConfig, table, "test")


def train(config: TrainerConfig, instances: InstanceSet, worker: Worker = CPU) -> Generation:
    """Train to the end, or on to it from what lies there."""
    generation = Generation(config.root, "training", "a" * 20)
    pretrain(config, generation, open_sources(config, instances), worker)
    return generation


def records(generation: Generation, kind: str) -> list[dict[str, Any]]:
    """The journal's records of a kind."""
    return [one for one in read_journal(generation) if one["kind"] == kind]


def what_was_learned(generation: Generation) -> list[dict[str, Any]]:
    """The records of all steps without the times and the attempt."""
    of_time = {"attempt", "data_wait_seconds", "seconds", "step_seconds", "tokens_per_second"}
    return [
        {name: value for name, value in one.items() if name not in of_time}
        for one in records(generation, "train")
    ]


def last_state(generation: Generation) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights and the state of the last checkpoint."""
    ref, _ = latest(generation)
    assert ref is not None
    checkpoint = load(generation, ref)
    return checkpoint.model, checkpoint.state


def stopped_after(step: int, whole: Path, root: Path) -> Path:
    """Copy a run as one that was stopped after the checkpoint of `step` has left it."""
    shutil.copytree(whole, root)
    (root / "training" / "current.json").unlink(missing_ok=True)
    (folder,) = root.glob("training/*")
    for path in folder.glob("checkpoints/step-*"):
        if int(path.name.split("-")[1]) > step:
            shutil.rmtree(path)
    for name in ("latest.json", "result.json", "manifest.json"):
        (folder / name).unlink(missing_ok=True)
    return root
