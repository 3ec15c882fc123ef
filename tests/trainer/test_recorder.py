"""Checkpoints are made when they are due, and no step waits for a store that is slow."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pipeline.commit import Generation
from tests.trainer.small_training import commit_sets, make_rows, small_config
from trainer import background_saver
from trainer.attempt_fence import AttemptFence
from trainer.checkpoint import CheckpointRef, committed, latest, load, write
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.optim import make_optimizer
from trainer.progress import Progress
from trainer.recorder import Recorder, training_metrics
from trainer.retention import read_best
from trainer.step import EvalResult
from trainer.training_run import initial_model


@pytest.fixture
def slow_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A store that takes no checkpoint until the event is set."""
    open_again = threading.Event()

    def late(*arguments: object) -> object:
        open_again.wait(timeout=60)
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(background_saver, "write", late)
    yield open_again
    open_again.set()


def evaluation(loss: float) -> EvalResult:
    return EvalResult(
        mlm_loss_nats=loss,
        mlm_accuracy=0.5,
        mlm_perplexity=math.exp(loss),
        pair_loss=None,
        pair_accuracy=None,
        masked_tokens=10,
        pairs=0,
        by_source={},
        not_evaluated=[],
    )


def recorder_of(root: Path, seconds: float) -> tuple[Recorder, EncoderForPreTraining, Generation]:
    rows = {"train": make_rows(16, 32), "held_out": make_rows(16, 32, seed=1)}
    config = small_config(root, training={"checkpoint_seconds": seconds})
    generation = Generation(str(root), "training", "a" * 20)
    fence = AttemptFence.take(generation)
    recorder = Recorder(config, fence, Progress(), training_metrics(config), workers=1)
    return recorder, initial_model(config, commit_sets(root, {32: rows})), generation


def committed_steps(generation: Generation) -> list[int]:
    return sorted(step for step, _ in committed(generation))


def test_a_checkpoint_that_is_due_while_one_is_being_written_is_put_off(
    tmp_path: Path, slow_store: threading.Event
) -> None:
    recorder, model, generation = recorder_of(tmp_path, seconds=1e-9)
    optimizer = make_optimizer(model, small_config(tmp_path).optimizer)
    with recorder:
        for step in range(1, 6):  # would wait for ever if it waited for the first
            recorder.save_when_due(model, optimizer, Progress(step=step))
        assert committed_steps(generation) == []
        slow_store.set()
    assert committed_steps(generation) == [1]
    recorder, model, generation = recorder_of(tmp_path, seconds=1e-9)
    with recorder:
        recorder.save_when_due(model, optimizer, Progress(step=6))
    assert committed_steps(generation) == [1, 6]


def test_the_best_weights_are_saved_though_a_checkpoint_is_being_written(
    tmp_path: Path, slow_store: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, model, generation = recorder_of(tmp_path, seconds=1e-9)
    optimizer = make_optimizer(model, small_config(tmp_path).optimizer)
    wait = recorder._saver.wait

    def goes_on_when_waited_for() -> CheckpointRef | None:
        slow_store.set()
        return wait()

    with recorder:
        recorder.save_when_due(model, optimizer, Progress(step=1))
        monkeypatch.setattr(recorder._saver, "wait", goes_on_when_waited_for)
        recorder.evaluation(2, 0, evaluation(4.0))
        recorder.save_when_due(model, optimizer, Progress(step=2))
    assert committed_steps(generation) == [1, 2]
    best = read_best(generation)
    assert best is not None and best.step == 2


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    recorder, model, generation = recorder_of(tmp_path, seconds=0.0)
    optimizer = make_optimizer(model, small_config(tmp_path).optimizer)
    with recorder:
        recorder.save_when_due(model, optimizer, Progress(step=1))
        with torch.no_grad():
            next(model.parameters())[0] = torch.nan
        recorder.save_when_due(model, optimizer, Progress(step=2))
    ref, _ = latest(generation)
    assert ref is not None and ref.step == 1


def test_an_evaluation_better_than_all_before_makes_a_checkpoint_that_stays(
    tmp_path: Path,
) -> None:
    recorder, model, generation = recorder_of(tmp_path, seconds=1e6)
    optimizer = make_optimizer(model, small_config(tmp_path).optimizer)
    with recorder:
        for step, loss in ((1, 5.0), (2, 4.0), (3, 4.5), (4, 4.0)):
            recorder.evaluation(step, 0, evaluation(loss))
            recorder.save_when_due(model, optimizer, Progress(step=step))
            in_flight = recorder._saver._in_flight
            recorder.save_when_due(model, optimizer, Progress(step=step))
            assert recorder._saver._in_flight is in_flight  # it is not made twice
            recorder._saver.wait()
    assert committed_steps(generation) == [1, 2]
    # A later attempt knows of it.
    recorder, model, generation = recorder_of(tmp_path, seconds=1e6)
    with recorder:
        recorder.evaluation(5, 0, evaluation(4.2))  # would be put off, were it one
        recorder.save_when_due(model, optimizer, Progress(step=5))
        recorder.evaluation(6, 0, evaluation(3.9))
        recorder.save_when_due(model, optimizer, Progress(step=6))
    assert committed_steps(generation) == [1, 2, 6]
    best = read_best(generation)
    assert best is not None and (best.step, best.mlm_loss_nats) == (6, 3.9)


def test_a_checkpoint_says_what_its_run_was_configured_as(tmp_path: Path) -> None:
    recorder, model, generation = recorder_of(tmp_path, seconds=0.0)
    config = small_config(tmp_path, training={"checkpoint_seconds": 0.0})
    optimizer = make_optimizer(model, config.optimizer)
    with recorder:
        recorder.save_when_due(model, optimizer, Progress(step=1))
    ref, _ = latest(generation)
    assert ref is not None
    told = load(generation, ref).state["config"]
    assert told["model"]["hidden_size"] == config.model.hidden_size
    assert told["seed"] == config.seed
    assert told["instances"]["objective"] == config.instances.objective
    assert {"documents", "vocabulary", "masking", "phases"} <= set(told)
    # Where a run lies and how fast it is made is none of its identity.
    assert str(tmp_path) not in str(told) and "workers" not in told["training"]
