"""One corpus, one undisturbed run, one running cluster: made once, when the first test asks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.corpus import SPLIT_BYTES, write_corpus
from tests.integration.product import RAY_FOLDER, run

CONFIG = f"""\
root = "ROOT"
seed = 7

[documents]
partitions = 6
held_out_fraction = 0.1
split_bytes = {SPLIT_BYTES}

[[documents.sources]]
name = "texts"
format = "text"
path = "CORPUS/texts"

[[documents.sources]]
name = "articles"
format = "jsonl"
path = "CORPUS/articles"
text_field = "body"

[vocabulary]
vocab_size = 600

[instances]
max_seq_length = 64
rows_per_batch = 64
rows_per_shard = 256

[model]
hidden_size = 32
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 64
hidden_dropout_prob = 0.0
attention_probs_dropout_prob = 0.0
max_position_embeddings = 64

[optimizer]
learning_rate = 3e-3

[schedule]
warmup_steps = 5

[training]
total_steps = 30
batch_size = 16
lanes = 4
precision = "fp32"
micro_batch_size = 8
workers = 2
log_steps = 1
checkpoint_seconds = 0.0 # one after every step
"""


def write_config(path: Path, *, root: Path, corpus: Path) -> str:
    """Write the tests' run as TOML; returns its path for --config."""
    path.write_text(CONFIG.replace("ROOT", str(root)).replace("CORPUS", str(corpus)))
    return str(path)


@pytest.fixture(scope="session", autouse=True)
def ray_folder() -> Iterator[None]:
    """Ray's folder for these tests alone, gone at their end."""
    RAY_FOLDER.mkdir(mode=0o700)
    yield
    shutil.rmtree(RAY_FOLDER)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The raw files."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> str:
    """The run's TOML; its root is only a default, tests say --root."""
    folder = tmp_path_factory.mktemp("config")
    return write_config(folder / "run.toml", root=folder / "run", corpus=corpus)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, config: str) -> Path:
    """Root of a run of the data half by one worker that nothing disturbed. Copy, never change."""
    root = tmp_path_factory.mktemp("undisturbed")
    arguments = ("--config", config, "--root", str(root), "--cluster.workers", "1")
    run("pipeline", "run", *arguments).require_success()
    return root
