"""Which checkpoints stay: the newest, those of every N steps, and the best."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.commit import Generation
from pipeline.errors import ConfigError
from tests.trainer.test_checkpoint import (
    FINGERPRINT,
    flip,
    folder,
    folders,
    save_step,
    tensors,
)
from trainer.attempt_fence import AttemptFence
from trainer.background_saver import BackgroundSaver
from trainer.checkpoint import MANIFEST, OPTIMIZER, latest, load
from trainer.retention import BEST, Evaluated, read_best, retain, set_best


@pytest.fixture
def generation(tmp_path: Path) -> Generation:
    return Generation(str(tmp_path), "training", FINGERPRINT)


def steps_of(generation: Generation) -> list[tuple[int, int]]:
    """(step, attempt) of every checkpoint's folder."""
    names = (name.split("-") for name in folders(generation))
    return sorted((int(name[1]), int(name[3])) for name in names)


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_are_kept(generation: Generation, keep: int) -> None:
    fence = AttemptFence.take(generation)
    refs = [save_step(fence, step) for step in (1, 2, 3, 4)]
    removed = retain(fence, keep=keep)
    assert list(removed) == [ref.name for ref in reversed(refs[: max(0, 4 - keep)])]
    assert folders(generation) == {Path(ref.name).name for ref in refs[-keep:]}
    for ref in refs[-keep:]:
        load(generation, ref)


def test_the_only_good_checkpoint_is_never_removed(generation: Generation) -> None:
    fence = AttemptFence.take(generation)
    save_step(fence, 1)
    good = save_step(fence, 2)
    for step in (3, 4):
        flip(folder(generation, save_step(fence, step)) / OPTIMIZER)
    removed = retain(fence, keep=1)
    assert removed == ("checkpoints/step-000000001-attempt-0001",)
    assert latest(generation)[0] == good


def test_left_overs_of_older_saves_are_removed_and_do_not_count(generation: Generation) -> None:
    fence = AttemptFence.take(generation)
    refs = [save_step(fence, step) for step in (1, 2, 3)]
    (folder(generation, refs[1]) / MANIFEST).unlink()
    assert retain(fence, keep=2) == (refs[1].name,)
    assert folders(generation) == {Path(ref.name).name for ref in (refs[0], refs[2])}


def test_keep_must_be_at_least_one(generation: Generation) -> None:
    fence = AttemptFence.take(generation)
    with pytest.raises(ConfigError, match=r"training\.keep_checkpoints = 0"):
        retain(fence, keep=0)
    with pytest.raises(ConfigError, match=r"training\.keep_checkpoints = 0"):
        BackgroundSaver(fence, keep=0)


def test_every_nth_step_stays_for_good_and_once(generation: Generation) -> None:
    first = AttemptFence.take(generation)
    for step in (2, 3, 4):
        save_step(first, step)
    second = AttemptFence.take(generation)
    for step in (4, 5, 6, 7, 8, 9):
        save_step(second, step)
    retain(second, keep=1, keep_every_steps=4)
    assert steps_of(generation) == [(4, 2), (8, 2), (9, 2)]
    for step in (10, 11):
        save_step(second, step)
        retain(second, keep=2, keep_every_steps=4)
    assert steps_of(generation) == [(4, 2), (8, 2), (10, 2), (11, 2)]


def evaluated(step: int, loss: float, phase: int = 0) -> Evaluated:
    return Evaluated(step=step, phase=phase, mlm_loss_nats=loss)


def test_the_best_stays_until_a_better_one_is_committed(generation: Generation) -> None:
    model, optimizer = tensors(1)
    losses = {1: 5.0, 2: 4.0, 3: None, 4: None, 5: 3.0, 6: None}
    kept = {}
    with BackgroundSaver(AttemptFence.take(generation), keep=1) as saver:
        for step, loss in losses.items():
            best = evaluated(step, loss) if loss else None
            saver.save(step=step, model=model, optimizer=optimizer, state={}, best=best)
            saver.wait()
            kept[step] = [step for step, _ in steps_of(generation)]
    assert kept == {1: [1], 2: [2], 3: [2, 3], 4: [2, 4], 5: [5], 6: [5, 6]}
    found = read_best(generation)
    assert found is not None and (found.step, found.mlm_loss_nats) == (5, 3.0)
    assert found.checkpoint == "checkpoints/step-000000005-attempt-0001"


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b'{"step": 1}',
        b"null",
        b'{"step": 1, "phase": null, "mlm_loss_nats": 5.0, "checkpoint": "x"}',
        b'{"step": 1, "phase": 0, "mlm_loss_nats": "low", "checkpoint": "x"}',
    ],
)
def test_a_damaged_best_json_protects_nothing_and_stops_nothing(
    generation: Generation, damage: bytes
) -> None:
    fence = AttemptFence.take(generation)
    save_step(fence, 1)
    set_best(fence, evaluated(1, 5.0))
    generation.storage.replace(generation.name(BEST), damage)
    assert read_best(generation) is None
    save_step(fence, 2)
    retain(fence, keep=1)
    assert steps_of(generation) == [(2, 1)]
    set_best(fence, evaluated(2, 6.0))
    assert json.loads(generation.storage.read(generation.name(BEST)))["step"] == 2


def test_losses_of_two_phases_are_not_compared() -> None:
    best = evaluated(10, 3.0)
    assert evaluated(20, 2.9).is_better_than(best)
    assert not evaluated(20, 3.0).is_better_than(best)
    assert evaluated(30, 9.0, phase=1).is_better_than(best)
    assert not evaluated(10, 1.0).is_better_than(evaluated(30, 9.0, phase=1))


def test_a_best_that_is_withdrawn_or_done_again_protects_no_damaged_copy(
    generation: Generation,
) -> None:
    first = AttemptFence.take(generation)
    ref = save_step(first, 2)
    set_best(first, evaluated(2, 4.0))
    flip(folder(generation, ref) / OPTIMIZER)
    second = AttemptFence.take(generation)
    # The same step again, and the same loss: the new copy is the one that is known to be whole.
    assert evaluated(2, 4.0).is_better_than(read_best(generation))
    save_step(second, 2)
    set_best(second, evaluated(2, 4.0))
    for step in (3, 4):
        save_step(second, step)
    retain(second, keep=1)
    assert steps_of(generation) == [(2, 2), (4, 2)]
    (folder(generation, ref).parent / "step-000000002-attempt-0002" / MANIFEST).unlink()
    assert read_best(generation) is None
