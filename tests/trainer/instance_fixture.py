"""A small committed instance set, written without the pipeline's jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pipeline.commit import Generation
from pipeline.config import MaskingConfig
from pipeline.contract import ObjectEntry, Objective, shard_schema
from pipeline.instance_rows import InstanceRows
from pipeline.instance_set import InstanceSet
from pipeline.masking import mask_tokens, token_classes
from pipeline.normalization import TextRules
from pipeline.shards import write_shard
from pipeline.vocabulary import SPECIAL_TOKENS, build_tokenizer, vocab_txt

PAD, UNK, CLS, SEP, MASK = range(5)
DIGITS = [f"digit{number}" for number in range(10)]
VOCABULARY = [
    *SPECIAL_TOKENS,
    *DIGITS,
    *(f"word{number}" for number in range(60)),
    *(f"##piece{number}" for number in range(25)),
]
SEED = 11
NUMBER_TOKENS = 5


@dataclass(frozen=True)
class Row:
    """One instance before masking."""

    input_ids: tuple[int, ...]
    first_segment_length: int
    next_sentence_label: int


def make_row(number: int) -> Row:
    """Instance `number`; its first tokens spell the number, so that a test can tell it."""
    draw = np.random.default_rng(number)
    digits = [len(SPECIAL_TOKENS) + int(digit) for digit in f"{number:0{NUMBER_TOKENS}d}"]
    words = len(SPECIAL_TOKENS) + len(DIGITS)
    first = [CLS, *digits, *draw.integers(words, len(VOCABULARY), draw.integers(1, 12)), SEP]
    second = [*draw.integers(words, len(VOCABULARY), draw.integers(1, 12)), SEP]
    return Row(
        input_ids=tuple(int(token) for token in [*first, *second]),
        first_segment_length=len(first),
        next_sentence_label=int(draw.integers(0, 2)),
    )


def make_rows(numbers: Sequence[int], static_rules: MaskingConfig | None) -> InstanceRows:
    """The instances `numbers`, masked if there are rules."""
    rows = [make_row(number) for number in numbers]
    ids = np.concatenate([np.array(row.input_ids, dtype=np.uint16) for row in rows])
    offsets = np.cumsum([0, *(len(row.input_ids) for row in rows)], dtype=np.int64)
    plain = InstanceRows(
        input_ids=ids,
        offsets=offsets,
        first_segment_length=np.array([row.first_segment_length for row in rows], np.uint16),
        pair_labels=np.array([row.next_sentence_label for row in rows], np.int8),
    )
    if static_rules is None:
        return plain
    masked = mask_tokens(
        ids,
        offsets,
        np.array(numbers, dtype=np.uint64),
        seed=SEED,
        purpose="mask",
        epoch=0,
        repetition=0,
        rules=static_rules,
        classes=token_classes(VOCABULARY, range(len(SPECIAL_TOKENS))),
    )
    in_row = masked.positions - np.repeat(offsets[:-1], np.diff(masked.row_offsets))
    return InstanceRows(
        input_ids=masked.input_ids,
        offsets=offsets,
        first_segment_length=plain.first_segment_length,
        pair_labels=plain.pair_labels,
        masked_positions=in_row.astype(np.uint16),
        masked_offsets=masked.row_offsets,
        masked_lm_ids=masked.masked_lm_ids,
    )


def write_instance_set(
    root: Path | str,
    *,
    train: Sequence[int] = (40, 40, 17),
    held_out: Sequence[int] = (12, 9),
    rows_per_batch: int = 8,
    static_rules: MaskingConfig | None = None,
    first: int = 0,
) -> InstanceSet:
    """Commit shards of so many rows, numbered on from `first`, and return the set they make."""
    numbered_from = first
    shards = []
    for split, sizes in (("train", train), ("held_out", held_out)):
        for size in sizes:
            shards.append((split, make_rows(range(first, first + size), static_rules)))
            first += size
    return commit_instances(
        root, VOCABULARY, shards, rows_per_batch=rows_per_batch, first=numbered_from
    )


def commit_instances(
    root: Path | str,
    vocabulary: Sequence[str],
    shards: Sequence[tuple[str, InstanceRows]],
    *,
    rows_per_batch: int,
    objective: Objective = "nsp",
    first: int = 0,
    fingerprint: str = "0123456789abcdef0123",
) -> InstanceSet:
    """Commit (split, rows) as one shard each, instances numbered on from `first`."""
    generation = Generation(str(root), "instances", fingerprint)
    static = shards[0][1].masked_offsets is not None
    word_starts = shards[0][1].word_starts is not None
    schema = shard_schema(
        vocab_size=len(vocabulary),
        objective=objective,
        word_starts=word_starts,
        static_masking=static,
    )
    entries = []
    for number, (split, rows) in enumerate(shards):
        objects, entry = write_shard(
            rows,
            schema,
            name=f"shards/{split}-{number:05d}",
            split=split,
            start=0,
            end=rows.rows,
            rows_per_batch=rows_per_batch,
            first_instance=first,
        )
        generation.complete(f"build/{number:06d}", objects, {})
        entries.append(entry.to_json())
        first += rows.rows
    tokenizer = build_tokenizer(vocabulary, TextRules())
    copies = {"tokenizer.json": tokenizer.to_str().encode(), "vocab.txt": vocab_txt(vocabulary)}
    generation.complete("tokenizer", copies, {})
    generation.commit(
        {
            "masking": {"mode": "static" if static else "dynamic"},
            "objective": objective,
            "seed": SEED,
            "sets": [{"max_seq_length": 64, "shards": entries}],
            "sources": ["corpus"],
            "special_ids": {token: number for number, token in enumerate(SPECIAL_TOKENS)},
            "tokenizer": {
                name.replace(".", "_"): asdict(ObjectEntry.of(name, data))
                for name, data in copies.items()
            },
            "vocab_size": len(vocabulary),
            "word_starts": word_starts,
        },
        {},
    )
    return InstanceSet.open(str(root))
