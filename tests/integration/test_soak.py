"""One training that ten faults in a row hit ends as the one that nothing disturbed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.commit import Generation
from pipeline.contract import METRICS_JSONL
from pipeline.errors import ClozelineError
from pipeline.storage import open_storage, sha256
from tests.integration.file_systems import mounted
from tests.integration.nodes import ray_nodes
from tests.integration.product import Command, module, started, wait_until
from tests.integration.run_folder import copy_data, current, manifest
from tests.integration.test_training import trajectory, trajectory_of, weights
from tests.s3_server import BUCKET, s3_server
from trainer.checkpoint import MANIFEST, CheckpointRef, latest, load

# boto3's own sockets are left to the collector.
pytestmark = [
    pytest.mark.ray,
    pytest.mark.s3,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ROOT = f"s3://{BUCKET}/run"
STEPS, BATCH = 200, 16
OUTAGE_SECONDS = 20.0
DISK_BYTES = 512 << 20


def command(config: str, root: str, *arguments: str) -> tuple[str, ...]:
    steps = ("--training.total_steps", str(STEPS))
    return module("trainer", "pretrain", "--config", config, "--root", root, *steps, *arguments)


class Soak:
    """The cluster, the store and the driver of the run, and what is done to them."""

    def __init__(self, stack: ExitStack, config: str, disk: Path) -> None:
        self.stack = stack
        self.disk = disk
        self.seen: set[tuple[int, int]] = set()
        """(step, attempt) of every checkpoint that was ever found committed."""
        # Each step is saved, and what is committed stays, so that the end can be asked for all.
        kept = ("--training.checkpoint_seconds", "0", "--training.keep_checkpoints", "100000")
        restarts = ("--training.max_restarts", "30")
        self.command = command(config, ROOT, *kept, *restarts)
        self.server = stack.enter_context(ExitStack())
        self.settings = self.server.enter_context(s3_server(disk))

    def begin(self, generation: Generation) -> None:
        """Start the cluster and the run, and wait for its first checkpoints."""
        self.generation = generation
        self.cluster = self.stack.enter_context(ray_nodes(2))
        self.submit()
        self.go_on_from(0)

    def submit(self) -> None:
        settings = {**self.settings, **self.cluster.join}
        self.job: Command = self.stack.enter_context(started(*self.command, **settings))

    def committed(self) -> list[tuple[int, int]]:
        """(step, attempt) of what lies in the store, all but the newest: it may be withdrawn."""
        start = self.generation.name("checkpoints")
        found = sorted(
            (int(name.split("step-")[1][:9]), int(name.split("attempt-")[1][:4]))
            for name, _ in self.generation.storage.list(start)
            if name.endswith(f"/{MANIFEST}")
        )[:-1]
        self.seen.update(found)
        return found

    def newest(self) -> int:
        try:
            return max((step for step, _ in self.committed()), default=0)
        except ClozelineError:  # the store is only just coming back
            return 0

    def wait_for_store(self, step: int) -> None:
        wait_until(lambda: self.newest() >= step, "the store has what it had")

    def go_on_from(self, step: int) -> None:
        self.job.until(lambda: self.newest() > step + 2, f"steps after {step}")

    # The faults.

    def kill_worker(self) -> None:
        self.cluster.worker_of(self.cluster.nodes[-1]).kill()

    def kill_node(self) -> None:
        self.cluster.kill(self.cluster.nodes[-1])
        self.cluster.add()

    def kill_driver(self) -> None:
        self.job.kill()
        self.submit()

    def stop_store(self) -> None:
        self.server.close()
        time.sleep(OUTAGE_SECONDS)
        self.start_store()

    def start_store(self) -> None:
        port = int(self.settings["AWS_ENDPOINT_URL_S3"].rpartition(":")[2])
        self.server.enter_context(s3_server(self.disk, port))

    def fill_disk(self) -> None:
        path = self.disk / "filler"
        with path.open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
            while True:
                filler.write(bytes(1 << 20))
        time.sleep(OUTAGE_SECONDS)
        path.unlink()
        # Once a write of its index has failed, this server fails every write until it is restarted.
        self.server.close()
        self.start_store()

    def pre_empt_worker(self) -> None:
        """Give notice first, as clouds do."""
        worker = self.cluster.worker_of(self.cluster.nodes[0])
        worker.send_signal(signal.SIGTERM)
        time.sleep(2.0)
        worker.kill()


TEN: tuple[Callable[[Soak], None], ...] = (
    Soak.kill_worker,
    Soak.kill_node,
    Soak.stop_store,
    Soak.kill_driver,
    Soak.fill_disk,
    Soak.pre_empt_worker,
    Soak.kill_node,
    Soak.stop_store,
    Soak.kill_driver,
    Soak.kill_worker,
)


@pytest.fixture
def soak(
    undisturbed: Path, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Soak]:
    """A run whose data lie in a store, whose disk is a small one of its own."""
    with mounted(tmp_path / "disk", DISK_BYTES) as disk, ExitStack() as stack:
        one = Soak(stack, config, disk)
        for name, value in one.settings.items():
            monkeypatch.setenv(name, value)
        store = open_storage(ROOT)
        for path in sorted(undisturbed.rglob("*")):
            if path.is_file() and not path.name.startswith(".tmp-"):
                store.create(path.relative_to(undisturbed).as_posix(), path.read_bytes())
        yield one


def test_ten_faults_in_a_row_change_nothing_and_lose_no_checkpoint(
    soak: Soak, undisturbed: Path, config: str, tmp_path: Path
) -> None:
    whole = copy_data(undisturbed, tmp_path / "whole")
    with started(*command(config, str(whole), "--training.checkpoint_seconds", "1e6")) as job:
        job.wait().require_success()
    # Where the data lie is no part of a run's name.
    soak.begin(Generation(ROOT, "training", current(whole, "training").name))
    for number, fault in enumerate(TEN, 1):
        before = soak.newest()
        assert soak.job.process.poll() is None, f"ended before fault {number}: {soak.job.wait()}"
        started_at = time.monotonic()
        fault(soak)
        soak.wait_for_store(before)
        soak.go_on_from(soak.newest())
        took = time.monotonic() - started_at
        print(f"{number} {fault.__name__}: step {before}, went on after {took:.0f} s")
    soak.job.wait().require_success()

    result = manifest(whole, "training")
    found = soak.generation.manifest()
    assert found is not None
    assert found["sequences_seen"] == result["sequences_seen"] == STEPS * BATCH
    for name in ("steps", "tokens_seen", "evaluation"):
        assert found[name] == result[name], name
    soak.committed()
    store = soak.generation.storage
    for step, attempt in sorted(soak.seen):
        folder = f"checkpoints/step-{step:09d}-attempt-{attempt:04d}"
        data = store.read(soak.generation.name(f"{folder}/{MANIFEST}"))
        ref = CheckpointRef(step=step, attempt=attempt, manifest_sha256=sha256(data))
        load(soak.generation, ref)
    ref, passed_over = latest(soak.generation)
    assert ref is not None and ref.step == STEPS and passed_over == ()
    mine = {name: store.read(soak.generation.name(f"{ref.name}/{name}")) for name in weights(whole)}
    assert mine == weights(whole)
    text = store.read(soak.generation.name(METRICS_JSONL)).decode()
    assert trajectory_of(text) == trajectory(whole)
