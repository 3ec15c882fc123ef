"""Loaders over several instance sets: mixed by weight, and one phase after another."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.instance_set import InstanceSet
from tests.trainer.instance_fixture import write_instance_set
from tests.trainer.loading import (
    global_steps,
    number_of,
    numbers_of,
    open_loader,
    phase_of,
    plain,
    take,
)
from trainer.data.epoch_order import Unit
from trainer.data.phases import Phase
from trainer.data.plan import LoaderState

BOOKS, WIKI = 97, 40


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> InstanceSet:
    """Instances 0 to 96."""
    return write_instance_set(tmp_path_factory.mktemp("books"), held_out=())


@pytest.fixture(scope="module")
def wiki(tmp_path_factory: pytest.TempPathFactory) -> InstanceSet:
    """Instances 1000 to 1039, in shards of another shape."""
    folder = tmp_path_factory.mktemp("wiki")
    return write_instance_set(folder, train=(25, 15), held_out=(), rows_per_batch=5, first=1000)


def mixed(books: InstanceSet, wiki: InstanceSet, unit: Unit = "sequences") -> list[Phase]:
    size = 10 if unit == "sequences" else 190
    return [phase_of(books, wiki, weights=[7.0, 3.0], batch_size=size, unit=unit)]


def test_every_batch_is_mixed_by_weight_and_each_source_has_epochs_of_its_own(
    books: InstanceSet, wiki: InstanceSet
) -> None:
    steps = global_steps(mixed(books, wiki), 40, world_size=1)
    seen: Counter[int] = Counter()
    for number, step in enumerate(steps):
        numbers = [number_of(one) for one in step]
        assert sum(one >= 1000 for one in numbers) == 3 and len(numbers) == 10
        seen.update(numbers)
        for first, size, share in ((0, BOOKS, 7), (1000, WIKI, 3)):
            epochs = (number + 1) * share // size
            assert {seen[one] for one in range(first, first + size)} <= {epochs, epochs + 1}


def test_a_mixture_by_tokens_gives_each_source_its_share_of_tokens(
    books: InstanceSet, wiki: InstanceSet
) -> None:
    steps = global_steps(mixed(books, wiki, "tokens"), 60, world_size=1)
    tokens = Counter[bool]()
    for step in steps:
        for one in step:
            tokens[number_of(one) >= 1000] += len(one[0])
    assert tokens[True] / tokens.total() == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("unit", ["sequences", "tokens"])
def test_a_mixture_is_the_same_for_any_world_size(
    books: InstanceSet, wiki: InstanceSet, unit: Unit
) -> None:
    phases = mixed(books, wiki, unit)
    alone = global_steps(phases, 25, world_size=1)
    for world_size in (2, 3):
        together = global_steps(phases, 25, world_size=world_size)
        assert [sorted(step) for step in together] == [sorted(step) for step in alone]


def two_phases(books: InstanceSet, wiki: InstanceSet) -> list[Phase]:
    first = phase_of(books, wiki, weights=[1.0, 1.0], batch_size=12, steps=13)
    return [first, phase_of(wiki, batch_size=100, unit="tokens", steps=12)]


def test_a_phase_ends_at_its_step_and_the_next_begins_with_its_own_sets_and_batches(
    books: InstanceSet, wiki: InstanceSet
) -> None:
    phases = two_phases(books, wiki)
    made = take(open_loader(phases), 100)
    assert [step.phase for step in made] == [0] * 13 + [1] * 12
    assert [step.state_after.step for step in made] == list(range(1, 26))
    steps = global_steps(phases, 100, world_size=1)
    assert all(len(step) == 12 for step in steps[:13])
    assert min(numbers_of(steps[13:])) >= 1000
    alone = global_steps([phase_of(wiki, batch_size=100, unit="tokens")], 12, world_size=1)
    assert steps[13:] == alone


@pytest.mark.parametrize("world_size, rank", [(1, 0), (3, 2)])
def test_restored_at_every_step_of_two_phases_it_goes_on_as_if_undisturbed(
    books: InstanceSet, wiki: InstanceSet, world_size: int, rank: int
) -> None:
    layout: dict[str, Any] = {"world_size": world_size, "rank": rank}
    phases = two_phases(books, wiki)
    undisturbed = plain(take(open_loader(phases, **layout), 100))
    for done in range(1, 26):
        state = LoaderState.from_json(undisturbed[done - 1][2].to_json())
        resumed = plain(take(open_loader(phases, state=state, **layout), 4))
        assert resumed == undisturbed[done : done + 4], f"after step {done}"


def test_two_phases_over_one_set_read_it_as_one_phase_does(books: InstanceSet) -> None:
    one = global_steps([phase_of(books)], 25, world_size=1)
    phases = [phase_of(books, steps=9), phase_of(books)]
    assert global_steps(phases, 25, world_size=1) == one
    with open_loader(phases) as loader:
        state = take(loader, 12)[-1].state_after
    assert state.phase == 1
    assert global_steps(phases, 13, world_size=1, state=state) == one[12:]


def test_a_run_that_passed_over_data_reads_what_came_after_them(tmp_path: Path) -> None:
    instances = write_instance_set(tmp_path)
    undisturbed = global_steps(instances, 12, world_size=1)
    with open_loader(instances) as loader:
        state = loader.plan.skip(next(loader).state_after, 4)
    assert state.step == 1
    assert global_steps(instances, 7, world_size=1, state=state) == undisturbed[5:]


def test_a_warmed_up_batch_is_the_same_for_any_world_size_and_restart(books: InstanceSet) -> None:
    phase = Phase(
        sources=phase_of(books).sources,
        batch_size=lambda step: 3 + 2 * step,
        micro_batch_size=4,
        steps=20,
    )
    steps = global_steps([phase], 20, world_size=1)
    assert [len(step) for step in steps] == [3 + 2 * step for step in range(20)]
    parts = global_steps([phase], 20, world_size=3)
    assert [sorted(step) for step in parts] == [sorted(step) for step in steps]
    state = take(open_loader([phase]), 9)[-1].state_after
    assert global_steps([phase], 11, world_size=1, state=state) == steps[9:]
