"""Documents to NSP shards on one core, 128 tokens a row: `python -m tests.benchmarks.instances`.

The core function has its documents in memory and leaves bytes there: encoding (warm table), pairs
or rows, masks, compression, checksums. Its peer is google-research/bert's algorithm as plain Python
functions (bert_reference.py), which tokenises, pairs and masks but writes nothing. A unit of the
job goes from documents on disk to shards on disk. Rates are of CPU seconds.

`--text FILE` takes other text than docstrings. `--job FOLDER [MEGABYTES]` measures the whole Ray
job with one and two workers; its corpus, documents and vocabulary stay in the folder.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from pipeline.commit import Generation
from pipeline.config import MaskingConfig, PipelineConfig
from pipeline.contract import Objective
from pipeline.document_encoding import EncodingVocabulary, encode_documents
from pipeline.instance_shards import SetWriter
from pipeline.jobs.instances import Plan, build_unit, open_vocabulary
from tests.benchmarks import _instances_job, _instances_run, bert_reference
from tests.benchmarks._instances_run import MAX_SEQ_LENGTH, config
from tests.benchmarks.harness import Case, run

_PEER_BYTES = 2_000_000
_BYTES = 48_000_000


def core(
    table: pa.Table, vocabulary: EncodingVocabulary, settings: PipelineConfig
) -> tuple[int, int]:
    """Do a partition's work in memory; returns the bytes of its shards and how many instances."""
    writer = SetWriter(
        settings,
        vocabulary,
        max_seq_length=MAX_SEQ_LENGTH,
        partition=0,
        split="train",
        name="train",
    )
    documents = encode_documents(table, vocabulary, settings.documents.sources)
    shards = [*writer.add(documents), *writer.finish()]
    size = sum(len(data) for objects, _ in shards for data in objects.values())
    return size, sum(entry.rows for _, entry in shards)


class Unit:
    """One unit of the job in this process, from a partition on disk to its shards on disk."""

    def __init__(self, root: str, documents: Sequence[list[str]]) -> None:
        self._root = root
        self._documents, entry = _instances_run.write_documents_file(root, documents)
        self._vocabulary = _instances_run.write_vocabulary(root, documents)
        self.megabytes = sum(len(one.encode()) for text in documents for one in text) / 1e6
        self._unit = {"marker": "build/000000", "partition": 0, "name": "train", "split": "train"}
        self._unit |= {"object": entry, "bytes": int(self.megabytes * 1e6)}

    @property
    def vocabulary(self) -> EncodingVocabulary:
        """What a worker keeps between units."""
        return open_vocabulary(self._vocabulary)

    def run(self, settings: PipelineConfig) -> None:
        """Build and write, after what an earlier call left is gone."""
        generation = Generation(self._root, "instances", "1" * 20)
        shutil.rmtree(f"{self._root}/instances", ignore_errors=True)
        build_unit(Plan(generation, self._documents, self._vocabulary, settings), self._unit)


def main(arguments: Sequence[str]) -> None:
    """Run the cases and write runs/bench/instances.json."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=False))
    sentences = _instances_run.base_sentences(options.get("--text", ""))
    if "--job" in options:
        size = int(arguments[arguments.index("--job") + 2 :][0]) if len(arguments) % 2 else 1_000
        _instances_job.main(options["--job"], sentences, 1_000_000 * size)
        return
    documents = list(_instances_run.documents_of(sentences, _BYTES))
    few = documents[: len(documents) * _PEER_BYTES // _BYTES]
    dynamic, static = MaskingConfig(), MaskingConfig(mode="static")
    with tempfile.TemporaryDirectory() as root:
        unit = Unit(root, documents)
        vocabulary = unit.vocabulary
        peer = partial(bert_reference.create, few, vocabulary.entries, MAX_SEQ_LENGTH)
        table, few_table = _instances_run.table_of(documents), _instances_run.table_of(few)
        few_megabytes = sum(len(one.encode()) for text in few for one in text) / 1e6
        objectives: tuple[tuple[Objective, MaskingConfig], ...] = (
            ("nsp", dynamic),
            ("nsp", static),
            ("sop", dynamic),
            ("full_sentences", dynamic),
        )
        cases = []
        for objective, masking in objectives:
            settings = config(objective=objective, masking=masking)
            core(few_table, vocabulary, settings)  # compiles
            cases.append(
                Case(
                    f"core, {objective}, {masking.mode} masks",
                    "MB/s",
                    few_megabytes,
                    partial(core, few_table, vocabulary, settings),
                    "google-research/bert's algorithm",
                    peer,
                    clock=time.process_time,
                )
            )
        for masking in (dynamic, static):
            ten, one = (config(duplicate_factor=factor, masking=masking) for factor in (10, 1))
            cases += [
                Case(
                    f"{what}, nsp, {masking.mode} masks, duplicate_factor 10",
                    "MB/s",
                    unit.megabytes,
                    partial(work, ten),
                    "duplicate_factor 1",
                    partial(work, one),
                    clock=time.process_time,
                )
                for what, work in (
                    ("unit of the job", unit.run),
                    ("core", partial(core, table, vocabulary)),
                )
            ]
        size, instances = core(table, vocabulary, config())
        print(f"{size / instances:.0f} bytes an instance on disk, {instances:,} instances")
        run("instances", cases)


if __name__ == "__main__":
    main(sys.argv[1:])
