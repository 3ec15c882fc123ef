"""A look at what a config's sources hold: `python -m pipeline.corpus run.toml`. Starts no Ray."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from pipeline.command_line import run_command
from pipeline.config import PipelineConfig, load
from pipeline.corpus import ReadReport, list_files, plan_splits, read_split
from pipeline.source_config import SourceConfig

_SHOWN_DOCUMENTS = 3
_SHOWN_CHARACTERS = 60


def preview(source: SourceConfig, config: PipelineConfig) -> None:
    """Read a source to its end; print its first documents, and what was read and left out."""
    report = ReadReport()
    files = list_files(source, config.seed, report)
    splits = plan_splits(source, files, config.documents.split_bytes)
    characters = 0
    for split in splits:
        for document in read_split(source, split, report, config.working_storage):
            characters += len(document.text)
            if report.counts["documents"] <= _SHOWN_DOCUMENTS:
                text = json.dumps(document.text[:_SHOWN_CHARACTERS], ensure_ascii=False)
                print(f"{source.name}/{document.path}#{document.offset}: {text}")
    totals = {"files": len(files), "splits": len(splits), "characters": characters}
    print(json.dumps({source.name: {**totals, **report.as_dict()}}, ensure_ascii=False))


def main(argv: Sequence[str]) -> int:
    """Preview every source of the config that the command line names."""
    if len(argv) != 1:
        print("usage: python -m pipeline.corpus RUN.toml [--debug]", file=sys.stderr)
        return 2
    config = load(argv[0])
    for source in config.documents.sources:
        preview(source, config)
    sys.stdout.flush()  # here a closed pipe can be answered for, at the interpreter's end it cannot
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
