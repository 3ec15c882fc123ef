"""Evaluation batches, and what the loader does about damage, slowness and wrong settings."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from pipeline.errors import ConfigError, CorruptError, InputError, LastingStorageError
from pipeline.instance_set import InstanceSet
from pipeline.masking import mask_tokens
from tests.trainer.instance_fixture import SEED, make_row, write_instance_set
from tests.trainer.loading import (
    RULES,
    TRAIN_ROWS,
    evaluate,
    number_of,
    open_loader,
    sequences,
)
from trainer.data.phases import set_name
from trainer.data.plan import LoaderState, SourceState
from trainer.loader import Loader, StepBatches


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> InstanceSet:
    return write_instance_set(tmp_path_factory.mktemp("set"))


@pytest.mark.parametrize("max_instances, total", [(None, 21), (100, 21), (10, 10), (2, 2)])
def test_evaluation_is_the_same_for_any_world_size(
    instances: InstanceSet, max_instances: int | None, total: int
) -> None:
    alone = sequences(list(evaluate(instances, world_size=1, rank=0, max_instances=max_instances)))
    assert [number_of(one) for one in alone] == list(range(TRAIN_ROWS, TRAIN_ROWS + total))
    for world_size in (1, 2, 3, 5):
        for batch_size in (1, 5, 64):
            parts = [
                one
                for rank in range(world_size)
                for one in sequences(
                    list(
                        evaluate(
                            instances,
                            world_size=world_size,
                            rank=rank,
                            batch_size=batch_size,
                            max_instances=max_instances,
                        )
                    )
                )
            ]
            assert parts == alone


def test_evaluation_masks_are_not_those_of_training(instances: InstanceSet) -> None:
    masks = {}
    purposes: tuple[Literal["mask", "evaluation_mask"], ...] = ("mask", "evaluation_mask")
    for purpose in purposes:
        rows = make_row(TRAIN_ROWS)
        ids = np.array(rows.input_ids, dtype=np.uint16)
        masked = mask_tokens(
            ids,
            np.array([0, ids.size]),
            np.array([TRAIN_ROWS], dtype=np.uint64),
            seed=SEED,
            purpose=purpose,
            epoch=0,
            repetition=0,
            rules=RULES,
            classes=instances.token_classes,
        )
        masks[purpose] = tuple(masked.input_ids.tolist())
    seen = sequences(list(evaluate(instances, world_size=1, rank=0)))[0][0]
    assert seen == masks["evaluation_mask"] != masks["mask"]


def test_a_changed_byte_of_a_shard_reaches_the_consumer_as_corrupt_error(tmp_path: Path) -> None:
    damaged = write_instance_set(tmp_path)
    shard = damaged.shards("train")[1]
    path = tmp_path / damaged.generation.prefix / shard.object.name
    data = bytearray(path.read_bytes())
    data[shard.batch_offsets[2] + 100] ^= 1
    path.write_bytes(data)
    with open_loader(damaged) as loader, pytest.raises(CorruptError, match=shard.object.name):
        for _ in range(13):
            next(loader)
    # Not the end of the data, and not skipped: asked again, it fails again.
    with pytest.raises(CorruptError, match="record batch 2"):
        next(loader)


def test_a_shard_that_vanished_is_named_and_no_restart_is_to_look_for_it(tmp_path: Path) -> None:
    without = write_instance_set(tmp_path)
    name = without.shards("train")[0].object.name
    (tmp_path / without.generation.prefix / name).unlink()
    with open_loader(without) as loader, pytest.raises(LastingStorageError, match=name):
        for _ in range(13):
            next(loader)


def test_closing_ends_the_threads_also_with_steps_not_taken(instances: InstanceSet) -> None:
    before = set(threading.enumerate())
    loader = open_loader(instances, prefetch=4)
    next(loader)
    names = {thread.name.rpartition("_")[0] for thread in set(threading.enumerate()) - before}
    assert names == {"loader", "loader-read"}
    loader.close()
    # One that another test left may end meanwhile.
    assert not set(threading.enumerate()) - before


def test_a_slow_consumer_does_not_make_the_loader_run_ahead(
    instances: InstanceSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    step = Loader._step

    def counted(self: Loader, *parts: Any) -> StepBatches:
        made.append(parts)
        return step(self, *parts)

    monkeypatch.setattr(Loader, "_step", counted)
    loader = open_loader(instances, prefetch=3)
    for taken in (1, 2, 3):
        next(loader)
        # The tasks already submitted are all the thread may do.
        for future in loader._ahead:
            future.result()
        assert len(made) == taken + 3
    loader.close()


@pytest.mark.parametrize(
    "layout, message",
    [
        (
            {"batch_size": 2, "world_size": 3},
            "training.batch_size = 2: must be at least training.workers = 3",
        ),
        ({"world_size": 5}, "training.workers = 5: must be at most training.lanes = 4"),
        ({"rank": 2, "world_size": 2}, "rank = 2"),
        ({"lanes": 0}, "training.lanes = 0"),
        ({"window_batches": 0}, "training.window_batches = 0"),
        ({"micro_batch_size": 0}, "training.micro_batch_size = 0"),
        ({"prefetch": 0}, "training.prefetch_steps = 0"),
        ({"read_threads": 0}, "training.read_threads = 0"),
        ({"batch_size": 100}, "training.batch_size = 100: .* has 97 training sequences, less than"),
        ({"batch_size": 9_999, "unit": "tokens"}, "batch_size = 9999: .* has .* training tokens"),
    ],
)
def test_a_layout_that_cannot_be_served_is_refused(
    instances: InstanceSet, layout: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_loader(instances, **layout)


def test_a_state_of_other_data_is_refused(instances: InstanceSet) -> None:
    def state(name: str, *, phase: int = 0, cursor: int = 0) -> LoaderState:
        source = SourceState(instances=name, epoch=2, cursor=cursor)
        return LoaderState(phase=phase, step=5, sources=(source,))

    own = set_name(instances)
    with pytest.raises(ConfigError, match=r"trained on instances feed/128; .* is 0123456789"):
        open_loader(instances, state=state("feed/128"))
    with pytest.raises(ConfigError, match=r"unit 97 of epoch 2 .* an epoch has 97"):
        open_loader(instances, state=state(own, cursor=TRAIN_ROWS))
    with pytest.raises(ConfigError, match="step 5 in phase 1, the config has that step in phase 0"):
        open_loader(instances, state=state(own, phase=1))
    with pytest.raises(CorruptError, match="must have phase, step and sources"):
        LoaderState.from_json({"epoch": 1})


def test_no_held_out_instances_is_an_error(tmp_path: Path) -> None:
    train_only = write_instance_set(tmp_path, held_out=())
    with pytest.raises(InputError, match="held_out"):
        evaluate(train_only, world_size=1, rank=0)
