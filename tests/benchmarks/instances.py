"""One partition of documents to shards in memory, one core: `python -m tests.benchmarks.instances`.

From sentences to compressed Arrow bytes: encoding (warm table), pairs or rows, masks, writing.
The peer is google-research/bert's algorithm as plain Python functions (tests/benchmarks/
bert_reference.py), which tokenises, pairs and masks but writes nothing. The last cases hold
duplicate_factor 10 against factor 1: all of a unit of the job, its start and the decompression of
its documents included, but for the storage.
"""

from __future__ import annotations

import itertools
import re
from functools import partial

import pyarrow as pa

from pipeline.config import (
    DocumentsConfig,
    InstancesConfig,
    MaskingConfig,
    PipelineConfig,
    SourceConfig,
)
from pipeline.contract import DOCUMENT_SCHEMA, Objective
from pipeline.encoding import WordPieceEncoder, build_word_table
from pipeline.instance_shards import encode_documents, plan_partition, write_partition
from pipeline.masking import token_classes
from pipeline.merge import read_documents, write_documents
from pipeline.normalization import NormalizationTable, TextRules
from pipeline.vocabulary import (
    SPECIAL_TOKENS,
    build_tokenizer,
    count_words,
    special_ids,
    train_wordpiece,
)
from tests.benchmarks import bert_reference
from tests.benchmarks.encoding import docstrings
from tests.benchmarks.harness import Case, run

_PEER_BYTES = 2_000_000
_BYTES = 24_000_000
_DOCUMENT_BYTES = 3_000
_MAX_SEQ_LENGTH = 128

Documents = list[list[str]]


def corpus(size: int) -> Documents:
    """Documents of about 3 kB of docstrings, cut into sentences."""
    texts = itertools.cycle([" ".join(text.split()) for text in docstrings() if len(text) > 200])
    documents: Documents = []
    written = 0
    while written < size:
        parts: list[str] = []
        while sum(map(len, parts)) < _DOCUMENT_BYTES:
            parts.append(next(texts))
        documents.append(re.split(r"(?<=[.!?:])\s+", " ".join(parts)))
        written += sum(map(len, parts))
    return documents


class Bench:
    """A vocabulary of the corpus and everything a worker has when it starts on a partition."""

    def __init__(self, documents: Documents) -> None:
        rules = TextRules()
        self.normalization = NormalizationTable.build(rules)
        text = pa.array([one for document in documents for one in document], pa.large_string())
        counts = count_words(text, self.normalization)
        self.entries = train_wordpiece(
            counts,
            vocab_size=8192,
            special_tokens=SPECIAL_TOKENS,
            min_frequency=2,
            alphabet_limit=1000,
        )
        self.tokenizer_json = build_tokenizer(self.entries, rules).to_str()
        words = counts["word"].combine_chunks()
        self.word_table = build_word_table(self.tokenizer_json, words)
        self.start()

    def start(self) -> None:
        """Do what a unit of the job does before its documents are encoded."""
        table = self.normalization.to_table()
        self.normalization = NormalizationTable.from_table(table)
        self.encoder = WordPieceEncoder(self.tokenizer_json, self.word_table, self.normalization)
        self.classes = token_classes(self.entries, range(len(SPECIAL_TOKENS)))

    def unit(self, data: bytes, config: PipelineConfig) -> tuple[int, int]:
        """Do all of a unit but its reads and writes, from the bytes of a documents file."""
        self.start()
        return self.shards(read_documents(data), config)

    def shards(self, table: pa.Table, config: PipelineConfig) -> tuple[int, int]:
        """Do a partition's work; return the bytes of its shards and how many instances."""
        documents = encode_documents(
            table,
            self.encoder,
            sources=config.documents.sources,
            vocabulary=self.entries,
            normalization=self.normalization,
            classes=self.classes,
            special_ids=special_ids(self.entries),
        )
        plan, _ = plan_partition(
            documents,
            config.instances,
            max_seq_length=_MAX_SEQ_LENGTH,
            seed=config.seed,
            special_ids=special_ids(self.entries),
        )
        size = 0
        for objects, _, _ in write_partition(
            documents,
            plan,
            config,
            partition=0,
            split="train",
            name="train",
            classes=self.classes,
            special_ids=special_ids(self.entries),
        ):
            size += sum(map(len, objects.values()))
        return size, plan.instances


def table_of(documents: Documents) -> pa.Table:
    """The documents as a partition."""
    hashes = [number.to_bytes(8, "little") * 2 for number in range(len(documents))]
    keys = [f"docs/file#{number}.0" for number in range(len(documents))]
    columns = {"document_hash": hashes, "document_key": keys, "sentences": documents}
    return pa.table(columns, schema=DOCUMENT_SCHEMA)


def config(
    objective: Objective = "nsp", *, duplicate_factor: int = 1, masking: MaskingConfig | None = None
) -> PipelineConfig:
    """Settings of a run at 128 tokens a row."""
    return PipelineConfig(
        documents=DocumentsConfig(
            sources=(SourceConfig(name="docs", format="text", path="unused"),)
        ),
        instances=InstancesConfig(
            objective=objective, max_seq_length=_MAX_SEQ_LENGTH, duplicate_factor=duplicate_factor
        ),
        masking=masking or MaskingConfig(),
    )


def megabytes(documents: Documents) -> float:
    """Text in MB."""
    return sum(len(one.encode()) for document in documents for one in document) / 1e6


def main() -> None:
    """Run the cases and write runs/bench/instances.json."""
    documents = corpus(_BYTES)
    bench = Bench(documents)
    table = table_of(documents)
    data = write_documents([table])
    few = documents[: _PEER_BYTES // _DOCUMENT_BYTES]
    few_table = table_of(few)
    dynamic, static = MaskingConfig(), MaskingConfig(mode="static")
    bench.shards(few_table, config(masking=static))  # compiles
    bench.shards(few_table, config("full_sentences"))
    peer = partial(bert_reference.create, few, bench.entries, _MAX_SEQ_LENGTH)
    objectives: tuple[tuple[Objective, MaskingConfig], ...] = (
        ("nsp", dynamic),
        ("nsp", static),
        ("sop", dynamic),
        ("full_sentences", dynamic),
    )
    cases = [
        Case(
            f"{objective}, {masking.mode} masks",
            "MB/s",
            megabytes(few),
            partial(bench.shards, few_table, config(objective, masking=masking)),
            "google-research/bert's algorithm",
            peer,
        )
        for objective, masking in objectives
    ]
    cases += [
        Case(
            f"nsp, {masking.mode} masks, duplicate_factor 10",
            "MB/s",
            megabytes(documents),
            partial(bench.unit, data, config(duplicate_factor=10, masking=masking)),
            "duplicate_factor 1",
            partial(bench.unit, data, config(masking=masking)),
        )
        for masking in (dynamic, static)
    ]
    size, instances = bench.shards(table, config())
    print(f"{size / instances:.0f} bytes an instance on disk, {instances:,} instances")
    run("instances", cases)


if __name__ == "__main__":
    main()
