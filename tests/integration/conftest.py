"""One corpus, one undisturbed run, one running cluster: made once, when the first test asks."""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.integration.corpus import SPLIT_BYTES, write_corpus
from tests.integration.product import RAY_FOLDER, module, run, started
from tests.integration.run_folder import copy_data
from tests.ports import free_port
from trainer import config as trainer_config
from trainer.config import TrainerConfig

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
weight = 1.5

[documents.cleaning]
deduplicate_paragraphs = 60

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
    # The last of Ray's processes may still be writing its log.
    shutil.rmtree(RAY_FOLDER, ignore_errors=True)


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


@dataclass(frozen=True)
class TrainedRun:
    """A whole run that nothing disturbed, and what its exporter answered while it trained."""

    root: Path
    settings: TrainerConfig
    scraped: str


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, config: str, undisturbed: Path) -> TrainedRun:
    """Train, export and report on a copy of the undisturbed run. Read, never change."""
    root = copy_data(undisturbed, tmp_path_factory.mktemp("trained"))
    port = free_port()
    scraped = ""

    def scrape() -> bool:
        nonlocal scraped
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                scraped = answer.read().decode()
        # Nobody listens before the first step, nor after the last, which may cut an answer.
        except (OSError, HTTPException):
            return False
        return "clozeline_training_loss_nats{" in scraped

    arguments = ("--config", config, "--root", str(root), "--cluster.metrics_port", str(port))
    with started(*module("trainer", "run", *arguments)) as training:
        training.until(scrape, "metrics were served")
        training.wait().require_success()
    settings = dataclasses.replace(trainer_config.load(config), root=str(root))
    return TrainedRun(root, settings, scraped)


@dataclass(frozen=True)
class Head:
    """A cluster that was started with `ray start --head` and waits for jobs."""

    address: str
    dashboard: str
    join: dict[str, str]
    """What a command's environment needs to join it."""


@pytest.fixture(scope="session")
def head(ray_folder: None) -> Iterator[Head]:
    """One node of two CPUs with token authentication, ended as it was started: by its process."""
    # Without its port the agent that takes jobs does not start; its usual one is of the range that
    # any connection may have.
    port, dashboard, agent = free_port(), free_port(), free_port()
    # Off for `ray job submit` and on for a local Ray by default: say it on both sides.
    login = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    start = (
        *("ray", "start", "--head", "--block", "--num-cpus=2", "--disable-usage-stats"),
        *(f"--port={port}", f"--dashboard-port={dashboard}"),
        *(f"--dashboard-agent-listen-port={agent}", "--object-store-memory=200000000"),
    )
    address = f"127.0.0.1:{port}"
    url = f"http://127.0.0.1:{dashboard}"
    with started(*start, **login) as node:

        def ready() -> bool:
            token = {"Authorization": f"Bearer {login['RAY_AUTH_TOKEN']}"}
            try:
                with urlopen(Request(f"{url}/api/jobs/", headers=token), timeout=5):
                    return True
            except (OSError, HTTPException):
                return False

        node.until(ready, "the cluster takes jobs")
        yield Head(address, url, {**login, "RAY_ADDRESS": address})
