"""Saves in the background, saves that fail, and saves that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipeline.commit import Generation
from pipeline.errors import StorageError
from pipeline.storage import LocalStorage
from tests.trainer.test_checkpoint import (
    FINGERPRINT,
    assert_same_bits,
    tensors,
)
from trainer.attempt_fence import AttemptFence
from trainer.background_saver import BackgroundSaver
from trainer.checkpoint import latest, load


@pytest.fixture
def generation(tmp_path: Path) -> Generation:
    return Generation(str(tmp_path), "training", FINGERPRINT)


def test_a_background_save_is_of_the_tensors_as_they_were(generation: Generation) -> None:
    model, optimizer = tensors(1)
    state = {"step": 1}
    refs = []
    with BackgroundSaver(AttemptFence.take(generation), keep=3) as saver:
        for step in (1, 2, 3):
            saver.save(step=step, model=model, optimizer=optimizer, state=state)
            for tensor in [*model.values(), *optimizer.values()]:
                tensor.add_(1)
            state["step"] += 1
            refs.append(saver.wait())
        assert saver.wait() == refs[-1]
        # The step is saved: nothing of it is written again.
        saver.save(step=3, model=model, optimizer=optimizer, state=state)
        assert saver.wait() == refs[-1]
    expected, expected_optimizer = tensors(1)
    for step, ref in enumerate(refs, 1):
        assert ref is not None and ref.step == step
        found = load(generation, ref)
        assert_same_bits(found.model, expected)
        assert_same_bits(found.optimizer, expected_optimizer)
        assert found.state == {"step": step}
        for tensor in [*expected.values(), *expected_optimizer.values()]:
            tensor.add_(1)


def test_closing_waits_for_the_save_in_flight(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on = threading.Event(), threading.Event()
    create = LocalStorage.create

    def slow_create(self: LocalStorage, name: str, data: bytes) -> None:
        started.set()
        assert go_on.wait(30)
        create(self, name, data)

    fence = AttemptFence.take(generation)
    monkeypatch.setattr(LocalStorage, "create", slow_create)
    saver = BackgroundSaver(fence, keep=1)
    model, optimizer = tensors(1)
    saver.save(step=1, model=model, optimizer=optimizer, state={})
    assert started.wait(30)
    assert latest(generation)[0] is None
    go_on.set()
    saver.close()
    ref, _ = latest(generation)
    assert ref is not None and ref.step == 1


def fail_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: LocalStorage, name: str, data: bytes) -> None:
        raise StorageError(f"{name}: cannot write: No space left on device")

    monkeypatch.setattr(LocalStorage, "create", full)


def test_a_failed_background_save_is_raised_by_the_next_call_and_loses_nothing(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = AttemptFence.take(generation)
    model, optimizer = tensors(1)
    saver = BackgroundSaver(fence, keep=1)
    saver.save(step=1, model=model, optimizer=optimizer, state={})
    good = saver.wait()
    fail_writes(monkeypatch)
    saver.save(step=2, model=model, optimizer=optimizer, state={})
    with pytest.raises(StorageError, match="No space left"):
        saver.save(step=3, model=model, optimizer=optimizer, state={})
    saver.save(step=4, model=model, optimizer=optimizer, state={})
    with pytest.raises(StorageError, match="No space left"):
        saver.close()
    assert latest(generation)[0] == good


def test_the_error_that_ended_training_is_not_hidden_by_a_failed_save(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = tensors(1)
    fence = AttemptFence.take(generation)
    fail_writes(monkeypatch)
    with (
        pytest.raises(ValueError, match="the original error") as raised,
        BackgroundSaver(fence, keep=1) as saver,
    ):
        saver.save(step=1, model=model, optimizer=optimizer, state={})
        raise ValueError("the original error")
    assert any("No space left" in note for note in raised.value.__notes__)


KILLED_SAVES = """
import json, os, signal, sys
import torch
from pipeline.commit import Generation
from trainer.attempt_fence import AttemptFence
from trainer.checkpoint import latest, load, save
from trainer.retention import retain

root = sys.argv[1]
# Every call by which a save changes the disk: die just before it.
CALLS = ("fdopen", "fsync", "link", "unlink", "replace")

def save_step(fence, step):
    weight = torch.full((50, 40), float(step))
    save(fence, step=step, model={"weight": weight}, optimizer={"step": torch.tensor(float(step))},
         state={"step": step})
    retain(fence, keep=1)

def die_at(point):
    count = 0
    def counted(call):
        def wrapper(*args, **kwargs):
            nonlocal count
            if count == point:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return call(*args, **kwargs)
        return wrapper
    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))

point = 0
step = 1
generation = Generation(root, "training", "feedfacefeedfacefeed")
save_step(AttemptFence.take(generation), step)
while True:
    step += 1
    fence = AttemptFence.take(generation)
    child = os.fork()
    if child == 0:
        die_at(point)
        save_step(fence, step)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    ref, skipped = latest(generation)
    found = load(generation, ref)
    print(json.dumps({
        "killed": os.WIFSIGNALED(status), "step": step, "latest": ref.step,
        "weight": sorted(set(found.model["weight"].reshape(-1).tolist())),
        "state": found.state["step"], "skipped": skipped,
    }), flush=True)
    if not os.WIFSIGNALED(status):
        break
    step = ref.step
    point += 1
"""


def test_killed_at_every_point_of_a_save_a_whole_checkpoint_is_found(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", KILLED_SAVES, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    rounds = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rounds) > 25
    assert [one["killed"] for one in rounds] == [True] * (len(rounds) - 1) + [False]
    for one in rounds:
        # The step that was being saved, or the one it started from: never less, never a mix.
        assert one["latest"] in (one["step"] - 1, one["step"])
        assert one["weight"] == [float(one["latest"])] and one["state"] == one["latest"]
    passed_over = [one for one in rounds if one["skipped"]]
    assert passed_over and all("the save did not end" in one["skipped"][0] for one in passed_over)
    assert {one["latest"] == one["step"] for one in rounds} == {True, False}
    assert rounds[-1]["latest"] == rounds[-1]["step"]
