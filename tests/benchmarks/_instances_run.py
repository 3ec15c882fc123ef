"""A run's documents and vocabulary on disk, made without Ray, for the benchmarks of instances."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from pipeline import runs
from pipeline.commit import Generation
from pipeline.config import (
    DocumentsConfig,
    InstancesConfig,
    MaskingConfig,
    PipelineConfig,
    SourceConfig,
    VocabularyConfig,
)
from pipeline.contract import DOCUMENT_SCHEMA, ObjectEntry, Objective
from pipeline.encoding import build_word_table
from pipeline.jobs import vocabulary as names
from pipeline.merge import write_documents
from pipeline.normalization import NormalizationTable, TextRules
from pipeline.vocabulary import (
    SPECIAL_TOKENS,
    build_tokenizer,
    count_words,
    special_ids,
    train_wordpiece,
    vocab_txt,
)
from tests.benchmarks._texts import docstrings

MAX_SEQ_LENGTH = 128
_VOCAB_SIZE = 16_384  # as many as docstrings give
_DOCUMENT_BYTES = 3_000


def sentences_of(texts: Sequence[str]) -> list[str]:
    """Texts cut at what looks like the end of a sentence, without very long ones."""
    cut = (re.split(r"(?<=[.!?:])\s+", " ".join(text.split())) for text in texts)
    return [one for sentences in cut for one in sentences if 10 < len(one) < 600]


def base_sentences(path: str = "") -> list[str]:
    """Sentences of a UTF-8 file, or of the standard library's docstrings."""
    return sentences_of([Path(path).read_text(encoding="utf-8")] if path else docstrings())


def documents_of(sentences: Sequence[str], size: int) -> Iterator[list[str]]:
    """Documents of about 3 kB, `size` bytes in all: the sentences drawn anew for each."""
    draws = random.Random(0)
    mean = sum(len(one.encode()) for one in sentences) / len(sentences)
    written = 0
    for number in itertools.count():
        document = draws.choices(sentences, k=max(2, round(_DOCUMENT_BYTES / mean)))
        document.append(f"This is document number {number}.")
        written += sum(len(one.encode()) + 1 for one in document)
        yield document
        if written >= size:
            return


def config(
    root: str = "unused",
    objective: Objective = "nsp",
    *,
    duplicate_factor: int = 1,
    masking: MaskingConfig | None = None,
) -> PipelineConfig:
    """Settings of a run at 128 tokens a row."""
    return PipelineConfig(
        root=root,
        documents=DocumentsConfig(
            held_out_fraction=0.0,
            sources=(
                SourceConfig(
                    name="docs", format="jsonl", path=str(Path(root).with_name("corpus.jsonl"))
                ),
            ),
        ),
        vocabulary=VocabularyConfig(vocab_size=_VOCAB_SIZE),
        instances=InstancesConfig(
            objective=objective, max_seq_length=MAX_SEQ_LENGTH, duplicate_factor=duplicate_factor
        ),
        masking=masking or MaskingConfig(),
    )


def table_of(documents: Sequence[list[str]]) -> pa.Table:
    """The documents as a partition."""
    columns = {
        "document_hash": [number.to_bytes(8, "little") * 2 for number in range(len(documents))],
        "document_key": [f"docs/file#{number}.0" for number in range(len(documents))],
        "sentences": documents,
    }
    return pa.table(columns, schema=DOCUMENT_SCHEMA)


def write_documents_file(root: str, documents: Sequence[list[str]]) -> tuple[Generation, object]:
    """Write one partition; returns its generation and the object's entry."""
    generation = Generation(root, "documents", "d" * 20)
    data = write_documents([table_of(documents)])
    entry = generation.create("train-00000.arrow", data)
    return generation, dataclasses.asdict(entry)


def write_vocabulary(root: str, documents: Sequence[list[str]]) -> Generation:
    """Commit a vocabulary of the documents' words, as its stage leaves it."""
    rules = TextRules()
    normalization = NormalizationTable.build(rules)
    text = pa.array([one for document in documents for one in document], pa.large_string())
    counts = count_words(text, normalization)
    entries = train_wordpiece(
        counts,
        vocab_size=_VOCAB_SIZE,
        leading=SPECIAL_TOKENS,
        min_pair_count=2,
        alphabet_limit=1_000,
    ).entries
    tokenizer_json = build_tokenizer(entries, rules).to_str()
    words = build_word_table(tokenizer_json, counts["word"].combine_chunks())
    data = {
        names.TOKENIZER_JSON: tokenizer_json.encode(),
        names.VOCAB_TXT: vocab_txt(entries),
        names.WORD_TABLE: names.word_table_bytes(words),
        names.NORMALIZATION: runs.write_stream(normalization.to_table()),
    }
    generation = Generation(root, "vocabulary", "5" * 20)
    generation.complete("train", data, {})
    objects = {name: dataclasses.asdict(ObjectEntry.of(name, one)) for name, one in data.items()}
    generation.commit({"objects": objects, "special_ids": special_ids(entries)}, {})
    return generation
