"""A checkpoint that is asked for in the middle of a run is there, and the run goes on from it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from tests.trainer.small_training import (
    CPU,
    commit_sets,
    last_state,
    make_rows,
    records,
    small_config,
    stopped_after,
    train,
    what_was_learned,
)
from trainer import pretrain
from trainer.checkpoint_requests import CheckpointRequests
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.step import EvalResult

STEPS, ASKED_AT = 8, 5


class AskedOnce(CheckpointRequests):
    """As if a notice came in while the step `ASKED_AT` was being prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def newest(self) -> int:
        self.step += 1
        return self.ask() if self.step == ASKED_AT else super().newest()


def saved_steps(root: Path) -> list[int]:
    found = root.glob("training/*/checkpoints/*/manifest.json")
    return sorted(int(path.parent.name.split("-")[1]) for path in found)


def test_the_step_of_a_request_is_saved_and_a_resume_from_it_equals_the_whole_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = tmp_path / "whole"
    rows = {"train": make_rows(64, 32), "held_out": make_rows(16, 32, seed=1)}
    instances = commit_sets(whole, {32: rows})
    # No checkpoint but the last is due by the clock.
    settings = {"total_steps": STEPS, "checkpoint_seconds": 1e6}
    requests = AskedOnce()
    worker = dataclasses.replace(CPU, requests=requests)
    undisturbed = train(small_config(whole, training=settings), instances, worker)
    assert saved_steps(whole) == [ASKED_AT, STEPS]
    assert f"step {ASKED_AT}: a checkpoint was asked for and is committed" in caplog.text
    assert not requests.is_waiting(requests.newest())

    root = stopped_after(ASKED_AT, whole, tmp_path / "stopped")
    resumed = train(small_config(root, training=settings), instances)
    weights, state = last_state(undisturbed)
    again, again_state = last_state(resumed)
    assert all(torch.equal(again[name], weights[name]) for name in weights)
    assert again_state == state
    assert what_was_learned(resumed) == what_was_learned(undisturbed)
    assert [one["attempt"] for one in records(resumed, "train")] == [1] * ASKED_AT + [2] * (
        STEPS - ASKED_AT
    )


def test_a_request_does_not_wait_for_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"train": make_rows(64, 32), "held_out": make_rows(16, 32, seed=1)}
    instances = commit_sets(tmp_path, {32: rows})
    requests = AskedOnce()
    seen = {}
    evaluate = pretrain._evaluate

    def watched(run: pretrain.Run, model: EncoderForPreTraining, step: int) -> EvalResult:
        seen[step] = (ASKED_AT in saved_steps(tmp_path), requests.is_waiting(requests._asked))
        return evaluate(run, model, step)

    monkeypatch.setattr(pretrain, "_evaluate", watched)
    config = small_config(
        tmp_path,
        training={"total_steps": STEPS, "checkpoint_seconds": 1e6},
        evaluation={"every_steps": 1},
    )
    train(config, instances, dataclasses.replace(CPU, requests=requests))
    assert seen[ASKED_AT] == (True, False)
    # Stopped in that evaluation, the run does it when it goes on.
    root = stopped_after(ASKED_AT, tmp_path, tmp_path / "stopped")
    journal = next(root.glob("training/*/metrics.jsonl"))
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines = [one for one in lines if (one["kind"], one["step"]) != ("evaluation", ASKED_AT)]
    journal.write_text("".join(json.dumps(one) + "\n" for one in lines))
    seen.clear()
    resumed = train(dataclasses.replace(config, root=str(root)), instances)
    assert ASKED_AT in seen
    assert [one["step"] for one in records(resumed, "evaluation")] == list(range(1, STEPS + 1))


def test_the_last_steps_weights_are_saved_before_they_are_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"train": make_rows(64, 32), "held_out": make_rows(16, 32, seed=1)}
    instances = commit_sets(tmp_path, {32: rows})
    config = small_config(tmp_path, training={"total_steps": 3, "checkpoint_seconds": 1e6})

    def killed(run: pretrain.Run, model: EncoderForPreTraining, step: int) -> EvalResult:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(pretrain, "_evaluate", killed)
        train(config, instances)
    assert saved_steps(tmp_path) == [3]
    trained = train(config, instances)
    assert [one["step"] for one in records(trained, "train")] == [1, 2, 3]
    assert [one["attempt"] for one in records(trained, "train")] == [1, 1, 1]


def test_nobody_waits_for_a_checkpoint_of_a_training_that_has_ended() -> None:
    requests = CheckpointRequests()
    first = requests.ask()
    assert requests.is_waiting(first)
    requests.answer(first)
    second = requests.ask()
    assert not requests.is_waiting(first) and requests.is_waiting(second)
    requests.close()
    assert not requests.is_waiting(second)
