"""The documents stage against datatrove's reader and writer and NLTK's sentence splitter.

One worker after its start, from uncompressed JSON Lines through cleaning, ICU sentences, the
split pass and the merge; then the whole job with two workers against the same with one.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import corpus, documents
from pipeline.commit import Generation
from pipeline.config import PipelineConfig
from pipeline.documents_config import CleaningConfig, DocumentsConfig
from pipeline.jobs import document_units as units
from pipeline.jobs import documents as job
from pipeline.jobs.cluster import data_session
from pipeline.source_config import SourceConfig
from tests.benchmarks.encoding import docstrings
from tests.benchmarks.harness import Case, run

_BYTES = 60_000_000
_JOB_BYTES = 1_000_000_000
_DOCUMENT_BYTES = 3_000


def write_corpus(path: Path, size: int) -> None:
    """Write documents of about 3 kB of docstrings, each with a number that makes it its own."""
    texts = itertools.cycle([text for text in docstrings() if len(text) > 200])
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for number in itertools.count():
            parts: list[str] = []
            while sum(map(len, parts)) < _DOCUMENT_BYTES:
                parts.append(" ".join(next(texts).split()))
            text = "\n".join([*parts, f"Document number {number}."])
            written += file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            if written >= size:
                return


def settings(path: Path, root: Path, *, deduplicate: bool = False, workers: int = 0) -> Any:
    """Return a run's config over the corpus."""
    source = SourceConfig(name="docs", format="jsonl", path=str(path))
    config = PipelineConfig(
        root=str(root),
        documents=DocumentsConfig(
            sources=(source,), cleaning=CleaningConfig(deduplicate=deduplicate)
        ),
    )
    return dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, workers=workers))


def one_worker(config: PipelineConfig) -> None:
    """Do what one worker does of the job, every unit in turn, in this process."""
    shutil.rmtree(config.root, ignore_errors=True)
    plan = units.Plan(
        Generation(config.root, "documents", "0" * 20),
        config,
        documents.choose_partitions(_BYTES, config.documents),
    )
    source = config.documents.sources[0]
    files = corpus.list_files(source, 0)

    def in_turn(work: Callable[[Any], Any], rows: Any, **_: object) -> list[dict[str, Any]]:
        return [work(row) for row in rows]

    job.Passes(plan, in_turn).run(
        {source.name: files}, {}, {source.name: corpus.ReadReport()}, _BYTES
    )


def whole_job(config: PipelineConfig) -> None:
    """Run the stage on a Ray that is up already."""
    shutil.rmtree(config.root, ignore_errors=True)
    job.run(config)


def datatrove_copy(path: Path, root: Path) -> None:
    """Read and write the corpus with datatrove, without any filter."""
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter
    from loguru import logger

    logger.remove()
    shutil.rmtree(root, ignore_errors=True)
    reader = JsonlReader(str(path.parent), glob_pattern=path.name)
    writer = JsonlWriter(str(root), compression=None)
    for _ in writer(reader(None, 0, 1), 0, 1):
        pass


def nltk_split(path: Path) -> None:
    """Split every document into sentences with NLTK's Punkt (its own English parameters need a
    download; these are the untrained ones, which cost the same)."""
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    tokenizer = PunktSentenceTokenizer()
    with path.open(encoding="utf-8") as file:
        for line in file:
            tokenizer.tokenize(json.loads(line)["text"])


def main() -> None:
    """Run the cases and write runs/bench/corpus.json."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "docs.jsonl"
        write_corpus(path, _BYTES)
        plain = settings(path, folder / "run")
        deduplicated = settings(path, folder / "run", deduplicate=True)
        one_worker(plain)  # compiles
        copy = partial(datatrove_copy, path, folder / "copy")
        megabytes = path.stat().st_size / 1e6
        cases = [
            Case("one worker, no deduplication", "MB/s", megabytes, partial(one_worker, plain),
                 "datatrove, reader and writer", copy),
            Case("one worker, exact deduplication", "MB/s", megabytes,
                 partial(one_worker, deduplicated), "datatrove, reader and writer", copy),
            Case("one worker, no deduplication", "MB/s", megabytes, partial(one_worker, plain),
                 "NLTK Punkt, splitting alone", partial(nltk_split, path), rounds=1),
        ]  # fmt: skip
        if "--job" not in sys.argv:
            run("corpus", cases)
            return
        large = folder / "large.jsonl"
        write_corpus(large, _JOB_BYTES)
        two, one = (settings(large, folder / "run", workers=count) for count in (2, 1))
        with data_session(two):
            whole_job(settings(path, folder / "run"))  # starts the workers
            cases.append(
                Case("whole job, 1 GB, two workers", "MB/s", large.stat().st_size / 1e6,
                     partial(whole_job, two), "the same, one worker", partial(whole_job, one))
            )  # fmt: skip
            run("corpus", cases)


if __name__ == "__main__":
    main()
