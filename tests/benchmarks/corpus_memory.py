"""Memory of a worker of the documents job: one 2 GB text file, one line of 200 MB.

There is no peer here: the figures are the highest resident memory of any worker process.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import psutil

from pipeline.config import PipelineConfig
from pipeline.documents_config import DocumentsConfig
from pipeline.jobs import documents as job
from pipeline.jobs.cluster import data_session
from pipeline.source_config import SourceConfig
from tests.benchmarks.encoding import docstrings
from tests.benchmarks.harness import save

_CASES = (("text", 2_000_000_000), ("lines", 200_000_000))


def write_text(path: Path, kind: str, size: int) -> None:
    """Write documents between blank lines, or one document in one line."""
    texts = [" ".join(text.split()) for text in docstrings()]
    separator = "\n\n" if kind == "text" else " "
    written = number = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            for text in texts:
                written += file.write(f"{text} {number}.{separator}")
                number += 1


class WorkerMemory:
    """Samples the resident bytes of every Ray worker below this process."""

    def __init__(self) -> None:
        self.highest = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> WorkerMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.cmdline()[0].startswith("ray::"):
                        self.highest = max(self.highest, process.memory_info().rss)
                except (psutil.Error, IndexError):
                    continue


def main() -> None:
    """Run both cases and write runs/bench/corpus_memory.json."""
    results = []
    for kind, size in _CASES:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name, "corpus.txt")
            write_text(path, kind, size)
            source = SourceConfig(name="s", format=kind, path=str(path))  # type: ignore[arg-type]
            config = PipelineConfig(
                root=f"{name}/run", documents=DocumentsConfig(sources=(source,))
            )
            with data_session(config), WorkerMemory() as memory:
                manifest = job.run(config)
            shutil.rmtree(config.root)
        result = {
            "case": f"one file, {kind}, {path.name}: {size / 1e6:.0f} MB",
            "value": memory.highest / 1e9,
            "unit": "GB resident, highest worker",
            "documents": manifest["counts"]["kept"],
        }
        print(result)
        results.append(result)
    save("corpus_memory", results)


if __name__ == "__main__":
    main()
