"""Checkpoints: exact, committed whole, verified before use, fenced by attempt."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.commit import Generation
from pipeline.errors import ConflictError, CorruptError, StorageError
from pipeline.storage import LocalStorage
from trainer.attempt_fence import AttemptFence
from trainer.checkpoint import (
    MANIFEST,
    MODEL,
    OPTIMIZER,
    STATE,
    CheckpointRef,
    latest,
    load,
    load_model,
    save,
)
from trainer.retention import retain

FINGERPRINT = "feedfacefeedfacefeed"


@pytest.fixture
def generation(tmp_path: Path) -> Generation:
    return Generation(str(tmp_path), "training", FINGERPRINT)


def tensors(step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A model and an optimizer state that tell their step, of every dtype and shape in use."""
    draw = torch.Generator().manual_seed(step)
    model = {
        "encoder.weight": torch.randn(7, 5, generator=draw),
        "encoder.half": torch.randn(3, 4, generator=draw).bfloat16(),
        "odd": torch.tensor([float("nan"), float("-inf"), -0.0, 1e-45]),
    }
    optimizer = {
        "step/encoder.weight": torch.tensor(float(step)),
        "exp_avg/encoder.weight": torch.randn(7, 5, generator=draw, dtype=torch.float64),
    }
    return model, optimizer


def save_step(fence: AttemptFence, step: int) -> CheckpointRef:
    model, optimizer = tensors(step)
    state = {"sequences_seen": 64 * step, "step": step}
    return save(fence, step=step, model=model, optimizer=optimizer, state=state)


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        as_bytes = [one.contiguous().reshape(-1).view(torch.uint8) for one in (found[name], tensor)]
        assert torch.equal(*as_bytes), name


def folder(generation: Generation, ref: CheckpointRef) -> Path:
    return Path(generation.root, generation.prefix, ref.name)


def folders(generation: Generation) -> set[str]:
    """Folders that still hold a file."""
    root = Path(generation.root, generation.prefix, "checkpoints")
    return {path.parent.name for path in root.rglob("*") if path.is_file()}


def pointed(generation: Generation) -> dict[str, Any]:
    return dict(json.loads(Path(generation.root, generation.prefix, "latest.json").read_text()))


def test_a_checkpoint_comes_back_exact_to_the_bit(generation: Generation) -> None:
    ref = save_step(AttemptFence.take(generation), 3)
    assert latest(generation) == (ref, ())
    assert CheckpointRef.from_json(json.loads(json.dumps(ref.to_json()))) == ref
    found = load(generation, ref)
    model, optimizer = tensors(3)
    assert_same_bits(found.model, model)
    assert_same_bits(found.optimizer, optimizer)
    assert found.state == {"sequences_seen": 192, "step": 3}
    assert_same_bits(load_model(generation, ref), model)


def test_an_optimizer_without_state_yet_is_saved_too(generation: Generation) -> None:
    fence = AttemptFence.take(generation)
    ref = save(fence, step=0, model=tensors(0)[0], optimizer={}, state={})
    assert load(generation, ref).optimizer == {}


def test_without_a_checkpoint_there_is_none(generation: Generation) -> None:
    assert latest(generation) == (None, ())
    assert retain(AttemptFence.take(generation), keep=1) == ()


def test_the_newest_is_that_of_the_highest_step_then_attempt(generation: Generation) -> None:
    first = AttemptFence.take(generation)
    save_step(first, 10)
    old = save_step(first, 20)
    second = AttemptFence.take(generation)
    assert latest(generation)[0] == old
    new = save_step(second, 20)
    assert latest(generation)[0] == new != old
    assert pointed(generation) == new.to_json()


def cut_short(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER, STATE, MANIFEST])
@pytest.mark.parametrize("damage", [cut_short, flip, Path.unlink])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_chosen(
    generation: Generation,
    name: str,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fence = AttemptFence.take(generation)
    good = save_step(fence, 1)
    bad = save_step(fence, 2)
    damage(folder(generation, bad) / name)
    with caplog.at_level(logging.WARNING):
        chosen, skipped = latest(generation)
    assert chosen == good
    assert len(skipped) == 1 and str(folder(generation, bad)) in skipped[0]
    assert skipped[0] in caplog.text
    with pytest.raises((CorruptError, StorageError), match=bad.name):
        load(generation, bad)
    # And it goes on from there: the next save is chosen again.
    newer = save_step(fence, 3)
    assert latest(generation) == (newer, ())


def test_two_damaged_ones_in_a_row_are_both_named(generation: Generation) -> None:
    fence = AttemptFence.take(generation)
    good, *bad = [save_step(fence, step) for step in (1, 2, 3)]
    for ref in bad:
        flip(folder(generation, ref) / MODEL)
    chosen, skipped = latest(generation)
    assert chosen == good
    assert [one.name in line for one, line in zip(reversed(bad), skipped, strict=True)] == [
        True
    ] * 2


def test_a_checkpoint_of_another_run_is_refused(generation: Generation) -> None:
    ref = save_step(AttemptFence.take(generation), 1)
    other = Generation(generation.root, "training", "0" * 20)
    shutil.copytree(folder(generation, ref), folder(other, ref))
    with pytest.raises(CorruptError, match=f"fingerprint is '{FINGERPRINT}' instead of '0000"):
        load(other, ref)
    assert latest(other)[0] is None


def test_other_bytes_under_the_same_name_are_refused(generation: Generation) -> None:
    ref = save_step(AttemptFence.take(generation), 1)
    path = folder(generation, ref) / MANIFEST
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(CorruptError, match=r"manifest\.json: SHA-256"):
        load(generation, ref)


def test_a_store_that_does_not_answer_is_no_reason_to_pass_one_over(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = AttemptFence.take(generation)
    save_step(fence, 1)
    save_step(fence, 2)

    def fails(self: LocalStorage, name: str, offset: int, length: int) -> bytes:
        raise StorageError(f"{name}: cannot read: 503")

    monkeypatch.setattr(LocalStorage, "read_range", fails)
    with pytest.raises(StorageError, match="503"):
        latest(generation)


def test_attempts_are_numbered_without_gaps_or_doubles(generation: Generation) -> None:
    with ThreadPoolExecutor(8) as pool:
        fences = list(pool.map(lambda _: AttemptFence.take(generation), range(24)))
    assert sorted(fence.attempt for fence in fences) == list(range(1, 25))


def test_a_superseded_attempt_can_neither_save_nor_delete(generation: Generation) -> None:
    old = AttemptFence.take(generation)
    save_step(old, 1)
    kept = save_step(old, 2)
    new = AttemptFence.take(generation)
    with pytest.raises(ConflictError, match="attempt 1 was superseded"):
        save_step(old, 3)
    with pytest.raises(ConflictError, match="attempt 1 was superseded"):
        retain(old, keep=1)
    assert len(folders(generation)) == 2
    assert latest(generation) == (kept, ())
    assert save_step(new, 3) == latest(generation)[0]


def test_an_attempt_superseded_in_the_middle_of_a_save_takes_it_back(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = AttemptFence.take(generation)
    kept = save_step(old, 1)
    create = LocalStorage.create

    def create_late(self: LocalStorage, name: str, data: bytes) -> None:
        if name.endswith(MANIFEST):
            monkeypatch.undo()
            AttemptFence.take(generation)
        create(self, name, data)

    monkeypatch.setattr(LocalStorage, "create", create_late)
    with pytest.raises(ConflictError, match="superseded"):
        save_step(old, 2)
    assert latest(generation)[0] == kept
    assert pointed(generation) == kept.to_json()


def test_latest_json_never_goes_back_to_a_lower_attempt(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Blind to the fence, as if both looked at the same moment: compare-and-swap still decides.
    monkeypatch.setattr(AttemptFence, "require_newest", lambda self, storage: None)
    old, new = AttemptFence.take(generation), AttemptFence.take(generation)
    refused = []

    def race(fence: AttemptFence) -> None:
        for step in range(1, 11):
            try:
                save_step(fence, step)
            except ConflictError:
                refused.append(fence.attempt)

    threads = [threading.Thread(target=race, args=(fence,)) for fence in (old, new)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(refused) <= {1}
    assert pointed(generation)["attempt"] == 2 and pointed(generation)["step"] == 10
    with pytest.raises(ConflictError, match="of a later attempt"):
        save_step(old, 11)
    assert latest(generation)[0] == CheckpointRef.from_json(pointed(generation))


@pytest.mark.parametrize("damaged", [b"", b"\0" * 10, b"[]", b'{"step": 1}', b'{"st'])
def test_a_damaged_latest_json_is_replaced(generation: Generation, damaged: bytes) -> None:
    fence = AttemptFence.take(generation)
    generation.storage.replace(generation.name("latest.json"), damaged)
    saved = save_step(fence, 1)
    assert pointed(generation) == saved.to_json()
    assert latest(generation)[0] == saved


def test_replace_if_has_one_winner(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))

    def increment(_: int) -> int:
        lost = 0
        while True:
            found = None if storage.size("counter") is None else storage.read("counter")
            if storage.replace_if("counter", found, str(int(found or b"0") + 1).encode()):
                return lost
            lost += 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(increment, range(64)))
    assert storage.read("counter") == b"64"
    assert not storage.replace_if("counter", None, b"0")
    assert not storage.replace_if("counter", b"63", b"0")
    assert not storage.replace_if("absent", b"", b"0")
    assert storage.size("absent") is None
