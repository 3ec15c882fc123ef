"""Checkpoints on a real S3 server: what holds on a disk holds where a condition is a header."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.commit import Generation
from pipeline.errors import ConflictError, CorruptError
from pipeline.storage.s3 import S3Storage
from tests.s3_server import BUCKET
from tests.trainer.test_checkpoint import FINGERPRINT, assert_same_bits, save_step, tensors
from trainer.attempt_fence import AttemptFence
from trainer.background_saver import BackgroundSaver
from trainer.checkpoint import (
    MANIFEST,
    MODEL,
    POINTER,
    CheckpointRef,
    committed,
    latest,
    load,
    load_model,
    newest_first,
)
from trainer.retention import Evaluated, read_best

# boto3's own sockets are left to the collector.
pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def generation(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Generation:
    """Below a prefix of this test's own."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    return Generation(f"s3://{BUCKET}/checkpoints/{request.node.name}", "training", FINGERPRINT)


def pointed(generation: Generation) -> CheckpointRef:
    found = generation.storage.read(generation.name(POINTER))
    return CheckpointRef.from_json(json.loads(found))


def folders(generation: Generation) -> list[tuple[int, int]]:
    """(step, attempt) of every checkpoint's folder, which has a manifest."""
    found = newest_first(generation.storage, generation)
    assert found == committed(generation)
    return sorted(found)


def test_a_checkpoint_comes_back_exact_to_the_bit(generation: Generation) -> None:
    ref = save_step(AttemptFence.take(generation), 3)
    assert latest(generation) == (ref, ())
    assert pointed(generation) == ref
    found = load(generation, ref)
    model, optimizer = tensors(3)
    assert_same_bits(found.model, model)
    assert_same_bits(found.optimizer, optimizer)
    assert found.state == {"sequences_seen": 192, "step": 3}
    assert_same_bits(load_model(generation, ref), model)


def test_damaged_newest_ones_are_named_and_the_one_before_them_chosen(
    generation: Generation,
) -> None:
    fence = AttemptFence.take(generation)
    good, changed, not_ended = [save_step(fence, step) for step in (1, 2, 3)]
    storage = generation.storage
    name = generation.name(f"{changed.name}/{MODEL}")
    data = bytearray(storage.read(name))
    data[len(data) // 2] ^= 1
    storage.replace(name, bytes(data))
    storage.delete(generation.name(f"{not_ended.name}/{MANIFEST}"))
    chosen, skipped = latest(generation)
    assert chosen == good
    assert [f"{not_ended.name}: has no {MANIFEST}" in skipped[0], name in skipped[1]] == [True] * 2
    with pytest.raises(CorruptError, match=rf"{changed.name}/{MODEL}: SHA-256"):
        load(generation, changed)
    assert latest(generation)[0] == good
    newer = save_step(fence, 4)
    assert latest(generation) == (newer, ())


def test_an_attempt_that_was_superseded_can_neither_save_nor_move_latest_json(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = AttemptFence.take(generation)
    kept = save_step(old, 1)
    create = S3Storage.create

    def create_late(self: S3Storage, name: str, data: bytes) -> None:
        if name.endswith(MANIFEST):
            monkeypatch.setattr(S3Storage, "create", create)
            AttemptFence.take(generation)
        create(self, name, data)

    # In the middle of a save: its manifest is taken back.
    monkeypatch.setattr(S3Storage, "create", create_late)
    with pytest.raises(ConflictError, match="attempt 1 was superseded"):
        save_step(old, 2)
    assert pointed(generation) == kept == latest(generation)[0]
    # Before it: nothing is written.
    before = list(generation.storage.list(""))
    with pytest.raises(ConflictError, match="attempt 1 was superseded"):
        save_step(old, 3)
    assert list(generation.storage.list("")) == before


def test_attempts_that_begin_at_once_have_numbers_of_their_own(generation: Generation) -> None:
    with ThreadPoolExecutor(4) as pool:
        fences = list(pool.map(lambda _: AttemptFence.take(generation), range(4)))
    assert sorted(fence.attempt for fence in fences) == [1, 2, 3, 4]


def test_the_newest_the_best_and_every_nth_stay(generation: Generation) -> None:
    model, optimizer = tensors(1)
    losses = {1: 5.0, 2: 4.0, 3: None, 4: None, 5: None, 6: 3.0, 7: None}
    kept = {}
    with BackgroundSaver(AttemptFence.take(generation), keep=1, keep_every_steps=4) as saver:
        for step, loss in losses.items():
            best = None
            if loss is not None:
                best = Evaluated(step=step, phase=0, mlm_loss_nats=loss)
            saver.save(step=step, model=model, optimizer=optimizer, state={}, best=best)
            saver.wait()
            kept[step] = [step for step, _ in folders(generation)]
    assert kept == {
        1: [1],
        2: [2],
        3: [2, 3],
        4: [2, 4],
        5: [2, 4, 5],
        6: [4, 6],
        7: [4, 6, 7],
    }
    found = read_best(generation)
    assert found is not None and (found.step, found.mlm_loss_nats) == (6, 3.0)
    newest, passed_over = latest(generation)
    assert newest is not None and newest.step == 7 and passed_over == ()


def test_of_two_writers_of_latest_json_one_wins(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Blind to the fence, as if both looked at the same moment: compare-and-swap still decides.
    monkeypatch.setattr(AttemptFence, "require_newest", lambda self, storage: None)
    old, new = AttemptFence.take(generation), AttemptFence.take(generation)
    refused = []
    together = threading.Barrier(2)

    def race(fence: AttemptFence) -> None:
        for step in (1, 2, 3):
            together.wait(60)
            try:
                save_step(fence, step)
            except ConflictError:
                refused.append(fence.attempt)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(race, (old, new)))
    assert set(refused) <= {1}
    assert (pointed(generation).step, pointed(generation).attempt) == (3, 2)
    with pytest.raises(ConflictError, match="of a later attempt"):
        save_step(old, 4)
    assert latest(generation)[0] == pointed(generation)
    found = generation.storage.read(generation.name(POINTER))

    def swap(number: int) -> bool:
        together.wait(60)
        name = generation.name(POINTER)
        return generation.storage.replace_if(name, found, f"writer {number}".encode())

    with ThreadPoolExecutor(2) as pool:
        won = list(pool.map(swap, range(2)))
    assert sorted(won) == [False, True]
    left = generation.storage.read(generation.name(POINTER))
    assert left == f"writer {won.index(True)}".encode()
