"""The instances job on Ray: whole, with one and two workers; rate, memory, bytes an instance."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline.commit import current
from pipeline.config import PipelineConfig
from pipeline.jobs import documents, instances, vocabulary
from pipeline.jobs.cluster import data_session
from tests.benchmarks import _instances_run
from tests.benchmarks.corpus_memory import WorkerMemory
from tests.benchmarks.harness import save


def main(folder: str, sentences: Sequence[str], size: int) -> None:
    """Measure `size` bytes of text; what is in the folder already is used again."""
    corpus = Path(folder, "corpus.jsonl")
    if not corpus.exists():
        corpus.parent.mkdir(parents=True, exist_ok=True)
        with corpus.open("w", encoding="utf-8") as file:
            for document in _instances_run.documents_of(sentences, size):
                text = {"text": " ".join(document)}
                file.write(json.dumps(text, ensure_ascii=False) + "\n")
    settings = _instances_run.config(f"{folder}/run")
    results = []
    for workers in (1, 2):
        cluster = dataclasses.replace(settings.cluster, workers=workers)
        # Each session has worker processes of its own, so that both start alike.
        with data_session(dataclasses.replace(settings, cluster=cluster)):
            documents.run(settings)
            vocabulary.run(settings)
        with data_session(dataclasses.replace(settings, cluster=cluster)), WorkerMemory() as memory:
            result = measure(dataclasses.replace(settings, cluster=cluster))
        results.append({"workers": workers, **result, "worker_gb": memory.highest / 1e9})
        print(results[-1], flush=True)
    one, two = (result["seconds"] for result in results)
    print(f"two workers: {one / two:.2f} times one")
    save("instances_job", results)


def measure(settings: PipelineConfig) -> dict[str, float]:
    """Run the instances stage anew.

    `first_unit_seconds`: until the first partition is done, the start of the workers included.
    `unit_mb_s`: text of the other partitions over the time from there, whatever their number.
    """
    shutil.rmtree(f"{settings.root}/instances", ignore_errors=True)
    _, texts = current(settings.root, "documents", "python -m pipeline documents")
    start = time.time()
    manifest = instances.run(settings)
    seconds = time.time() - start
    sizes = {f"{number:06d}": file["text_bytes"] for number, file in enumerate(texts["files"])}
    ended = sorted(
        (path.stat().st_mtime - start, sizes[path.stem])
        for path in Path(settings.root).glob("instances/*/markers/build/*.json")
    )
    (one,) = manifest["sets"]
    shards = [shard for shard in one["shards"] if shard["split"] == "train"]
    disk = sum(shard["object"]["bytes"] + shard["lengths"]["bytes"] for shard in shards)
    later = ended[1:]
    return {
        "text_mb": sum(sizes.values()) / 1e6,
        "seconds": seconds,
        "mb_s": sum(sizes.values()) / 1e6 / seconds,
        "first_unit_seconds": ended[0][0],
        "unit_mb_s": sum(size for _, size in later) / 1e6 / (ended[-1][0] - ended[0][0]),
        "bytes_an_instance": disk / sum(shard["rows"] for shard in shards),
    }
