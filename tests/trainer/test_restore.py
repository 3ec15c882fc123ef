"""Which checkpoint an attempt begins from, and what is said of those it passes over."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.commit import Generation
from pipeline.errors import ConflictError, CorruptError
from pipeline.storage import LocalStorage
from tests.trainer.small_training import (
    last_state,
    records,
    small_config,
    stopped_after,
    train,
    two_lengths,
)
from tests.trainer.test_checkpoint import FINGERPRINT, flip, folder, save_step
from trainer import pretrain
from trainer.attempt_fence import AttemptFence
from trainer.checkpoint import MANIFEST, MODEL, CheckpointRef, adopt, committed, latest, withdraw
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.progress import Progress, Rollback
from trainer.report.finished_run import metrics_of
from trainer.restore import _to_go_back_to
from trainer.retention import BEST, abandon, read_best, retain
from trainer.step import EvalResult


@pytest.fixture
def generation(tmp_path: Path) -> Generation:
    return Generation(str(tmp_path), "training", FINGERPRINT)


def trained(root: Path) -> tuple[Generation, list[Path]]:
    """A run of 12 steps that is stopped, and its checkpoints, the oldest first."""
    config = small_config(
        root, instances={"max_seq_length": [16, 32]}, training={"max_seq_length": 16}
    )
    generation = train(config, two_lengths(root))
    (root / generation.name("result.json")).unlink()
    return generation, sorted((root / generation.name("checkpoints")).iterdir())


def go_on(root: Path) -> Generation:
    config = small_config(
        root, instances={"max_seq_length": [16, 32]}, training={"max_seq_length": 16}
    )
    return train(config, two_lengths(root / "same"))


def warnings_of_passing_over(generation: Generation) -> list[dict[str, Any]]:
    """Not those of a machine on which a step waits for data."""
    return [one for one in records(generation, "warning") if "passed over" in one["text"]]


def test_a_damaged_newest_checkpoint_is_passed_over_and_the_run_says_so(tmp_path: Path) -> None:
    generation, checkpoints = trained(tmp_path)
    weights, _ = last_state(generation)
    flip(checkpoints[-1] / MODEL)
    (checkpoints[-2] / MANIFEST).unlink()
    resumed = go_on(tmp_path)
    warnings = warnings_of_passing_over(resumed)
    told = [one["text"] for one in warnings]
    assert len(told) == 2 and all("a checkpoint was passed over" in text for text in told)
    assert checkpoints[-1].name in told[0] and "bytes were changed" in told[0]
    assert "the save did not end" in told[1]
    assert {one["step"] for one in warnings} == {10}
    found, state = last_state(resumed)
    assert state["step"] == 12
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    report = metrics_of(warnings, {"steps": 12, "evaluation": {}})
    assert [one["text"] for one in report.warnings] == told


def test_a_newest_and_a_best_that_are_named_but_not_there_are_told_of(tmp_path: Path) -> None:
    generation, checkpoints = trained(tmp_path)
    shutil.rmtree(checkpoints[-1])
    best = tmp_path / generation.name(BEST)
    best.write_text(best.read_text().replace("checkpoints/step", "checkpoints/of/another/machine"))
    resumed = go_on(tmp_path)
    texts = [one["text"] for one in records(resumed, "warning")]
    assert any(f"{checkpoints[-1].name}: was the newest, and is not there" in one for one in texts)
    assert any("best.json names no checkpoint that is there" in one for one in texts)
    assert last_state(resumed)[1]["step"] == 12


def test_a_run_none_of_whose_checkpoints_verifies_is_not_begun_anew(tmp_path: Path) -> None:
    generation, checkpoints = trained(tmp_path)
    for path in checkpoints:
        flip(path / MODEL)
    with pytest.raises(CorruptError, match=r"no checkpoint verifies: .* or remove checkpoints/"):
        go_on(tmp_path)
    for path in checkpoints:
        (path / MANIFEST).unlink()
    with pytest.raises(CorruptError, match="it was withdrawn or removed"):
        go_on(tmp_path)
    shutil.rmtree(tmp_path / generation.name("checkpoints"))
    assert last_state(go_on(tmp_path))[1]["step"] == 12


def test_a_best_that_a_kill_kept_from_being_named_is_evaluated_again_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, losses = pretrain._evaluate, {4: 4.0, 8: 3.0, 12: 5.0}

    def gives(run: pretrain.Run, model: EncoderForPreTraining, step: int) -> EvalResult:
        return dataclasses.replace(evaluate(run, model, step), mlm_loss_nats=losses[step])

    monkeypatch.setattr(pretrain, "_evaluate", gives)
    config = small_config(tmp_path, training={"total_steps": 12}, evaluation={"every_steps": 4})
    instances = two_lengths(tmp_path)
    generation = train(config, instances)
    undisturbed = records(generation, "evaluation")
    best = read_best(generation)
    assert best is not None and best.step == 8
    # Killed after the checkpoint of step 8, before best.json.
    root = stopped_after(8, tmp_path, tmp_path / "stopped")
    (root / generation.name(BEST)).unlink()
    resumed = train(dataclasses.replace(config, root=str(root)), instances)
    best = read_best(resumed)
    assert best is not None and (best.step, best.mlm_loss_nats) == (8, 3.0)
    assert records(resumed, "evaluation") == undisturbed


def went_back_to(step: int, phase_starts: list[int]) -> Progress:
    rollback = Rollback(from_step=step + 3, to_step=step, skipped_sequences=1, reason="")
    return Progress(step=step + 3, phase_starts=phase_starts, rollbacks=[rollback])


def test_from_a_checkpoint_that_failed_twice_it_goes_to_the_one_before_of_the_phase(
    generation: Generation,
) -> None:
    fence = AttemptFence.take(generation)
    refs = {step: save_step(fence, step) for step in (5, 10, 15)}
    assert _to_go_back_to(generation, refs[15], Progress(step=17)) == refs[15]
    # It has got on since it went back to step 10.
    assert _to_go_back_to(generation, refs[15], went_back_to(10, [0])) == refs[15]
    assert _to_go_back_to(generation, refs[15], went_back_to(15, [0])) == refs[10]
    assert _to_go_back_to(generation, refs[15], went_back_to(15, [0, 10])) == refs[10]
    # The data of another phase are others: there is nothing to skip in them.
    assert _to_go_back_to(generation, refs[15], went_back_to(15, [0, 15])) == refs[15]
    assert _to_go_back_to(generation, refs[5], went_back_to(5, [0])) == refs[5]


def test_abandoned_checkpoints_are_none_and_do_not_count(generation: Generation) -> None:
    old, new = AttemptFence.take(generation), AttemptFence.take(generation)
    assert old.attempt == 1
    for step in (1, 2, 3, 4):
        save_step(new, step)
    newer = AttemptFence.take(generation)
    again = save_step(newer, 2)
    abandon(newer, after=2)
    assert committed(generation) == [(2, 3), (2, 2), (1, 2)]
    assert latest(generation)[0] == again
    retain(newer, keep=2)
    assert committed(generation) == [(2, 3), (1, 2)]


def test_a_checkpoint_that_was_begun_from_is_not_taken_back(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The superseded attempt commits, the next one picks that, and only then the first looks."""
    old = AttemptFence.take(generation)
    picked: list[CheckpointRef] = []
    require_newest = AttemptFence.require_newest

    def late(self: AttemptFence, storage: LocalStorage) -> None:
        if len(committed(generation)) == 1 and not picked:
            new = AttemptFence.take(generation)
            ref, _ = latest(generation)
            assert ref is not None and adopt(new, ref)
            picked.append(ref)
        require_newest(self, storage)

    monkeypatch.setattr(AttemptFence, "require_newest", late)
    with pytest.raises(ConflictError, match="superseded"):
        save_step(old, 2)
    assert latest(generation)[0] == picked[0]
    assert (folder(generation, picked[0]) / MANIFEST).exists()


def test_a_checkpoint_that_was_taken_back_is_not_begun_from(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt has verified it when the superseded one takes it back."""
    kept = save_step(AttemptFence.take(generation), 1)
    old = AttemptFence.take(generation)
    seen: list[CheckpointRef] = []
    require_newest = AttemptFence.require_newest

    def late(self: AttemptFence, storage: LocalStorage) -> None:
        if self.attempt == 2 and len(committed(generation)) == 2 and not seen:
            AttemptFence.take(generation)
            ref, _ = latest(generation)
            assert ref is not None
            seen.append(ref)
        require_newest(self, storage)

    monkeypatch.setattr(AttemptFence, "require_newest", late)
    with pytest.raises(ConflictError, match="superseded"):
        save_step(old, 2)
    new = AttemptFence(generation, 3)
    assert not adopt(new, seen[0])
    withdraw(generation, seen[0].step, seen[0].attempt)
    ref, _ = latest(generation)
    assert ref == kept and adopt(new, kept)
