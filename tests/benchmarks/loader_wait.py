"""How long steps wait for their batches: `python -m tests.benchmarks.loader_wait`.

The demo's model and batches (deploy/runs/demo.toml) on one thread of one core, the loader's own
threads with it, over 16 million tokens: the journal's data_wait_seconds as a share of its
step_seconds, the mean of all records but the first, which waits for windows to open.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
from pathlib import Path

import torch
from rich.console import Console

from pipeline.commit import Generation
from tests.benchmarks.harness import save
from tests.benchmarks.loader import rows_of
from tests.benchmarks.masking import VOCABULARY
from tests.trainer.instance_fixture import commit_instances
from trainer.config import load
from trainer.journal import read_journal
from trainer.pretrain import pretrain
from trainer.ranks import Worker
from trainer.run_plan import open_sources

STEPS = 150
TOKENS = 1 << 24


def main(folder: Path) -> None:
    config = load("deploy/runs/demo.toml")
    rows = rows_of(128, TOKENS // 16)
    shards = [("train", rows)] * 16 + [("held_out", rows_of(128, 1 << 14))]
    instances = commit_instances(folder, VOCABULARY, shards, rows_per_batch=256)
    config = dataclasses.replace(
        config,
        root=str(folder),
        # What the fixture calls its sets.
        instances=dataclasses.replace(config.instances, max_seq_length=instances.max_seq_length),
        training=dataclasses.replace(config.training, total_steps=STEPS, workers=1),
        evaluation=dataclasses.replace(config.evaluation, every_steps=0, max_instances=64),
    )
    generation = Generation(str(folder), "training", "a" * 20)
    worker = Worker(0, 1, torch.device("cpu"), None)
    pretrain(config, generation, open_sources(config, instances), worker)
    records = [one for one in read_journal(generation) if one["kind"] == "train"]
    first = records[0]["data_wait_seconds"]
    wait = statistics.mean(one["data_wait_seconds"] for one in records[1:])
    step = statistics.mean(one["step_seconds"] for one in records[1:])
    result = {
        "case": "wait for data, the demo's model, one core",
        "value": wait,
        "unit": "seconds a step",
        "peer": "the step",
        "peer_value": step,
        "ratio": wait / step,
    }
    Console().print(
        f"wait {wait * 1e3:.3f} ms of a step of {step * 1e3:.1f} ms: {wait / step:.3%}; "
        f"{first * 1e3:.1f} ms a step in the first record"
    )
    save("loader_wait", [result])


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
