"""A changed line in a TOML never begins a training from nothing unnoticed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pipeline.commit import Generation
from pipeline.config import identity_fields
from pipeline.errors import ConfigError
from pipeline.instance_set import InstanceSet
from tests.trainer.small_training import CPU, commit_sets, make_rows, small_config
from trainer.config import TrainerConfig
from trainer.pretrain import pretrain
from trainer.run_plan import open_sources
from trainer.training_run import training_facts, training_generation, training_manifest
from trainer.unfinished import begin, refuse_changed

DOCS = Path(__file__).parents[2] / "docs" / "guides" / "recipes.md"


@pytest.fixture
def instances(tmp_path: Path) -> InstanceSet:
    rows = {"train": make_rows(64, 32), "held_out": make_rows(16, 32, seed=1)}
    return commit_sets(tmp_path, {32: rows})


def start(config: TrainerConfig, instances: InstanceSet) -> Generation:
    """What the command does before the workers."""
    generation = training_generation(config, instances)
    facts = training_facts(config, instances)
    if not config.training.beside_unfinished:
        refuse_changed(generation, facts)
    begin(generation, facts)
    return generation


def unfinished(config: TrainerConfig, instances: InstanceSet) -> Generation:
    generation = start(config, instances)
    pretrain(config, generation, open_sources(config, instances), CPU)
    (Path(config.root) / generation.name("result.json")).unlink()
    return generation


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"training": {"total_steps": 24}}, r"training\.total_steps: 4 there, 24 here"),
        (
            {"optimizer": {"learning_rate": 2e-2}},
            r"optimizer\.learning_rate: 0\.01 there, 0\.02 here",
        ),
        ({"schedule": {"decay": "cosine"}}, r"schedule\.decay: 'linear' there, 'cosine' here"),
        ({"divergence": {"deviations": 9.0}}, r"divergence\.deviations: 12\.0 there, 9\.0 here"),
    ],
)
def test_a_changed_identity_key_is_refused_by_name_while_the_training_is_unfinished(
    tmp_path: Path, instances: InstanceSet, changed: dict[str, Any], named: str
) -> None:
    tables: dict[str, Any] = {"training": {"total_steps": 4}}
    unfinished(small_config(tmp_path, **tables), instances)
    tables |= {name: {**tables.get(name, {}), **table} for name, table in changed.items()}
    with pytest.raises(ConfigError, match=rf"unfinished, at step 4 \({named}\)"):
        start(small_config(tmp_path, **tables), instances)
    tables["training"] = {**tables["training"], "beside_unfinished": True}
    start(small_config(tmp_path, **tables), instances)


def test_operational_keys_may_change_and_a_finished_training_is_no_obstacle(
    tmp_path: Path, instances: InstanceSet
) -> None:
    config = small_config(tmp_path, training={"total_steps": 4})
    generation = unfinished(config, instances)
    operational = small_config(
        tmp_path, training={"total_steps": 4, "micro_batch_size": 2, "threads_per_worker": 2}
    )
    assert start(operational, instances) == generation
    pretrain(operational, generation, open_sources(operational, instances), CPU)
    generation.commit(training_manifest(operational, generation, instances), {})
    start(small_config(tmp_path, training={"total_steps": 9}), instances)


def test_the_guide_lists_every_key_that_may_change() -> None:
    text = DOCS.read_text()
    config = TrainerConfig()
    for table in ("training", "evaluation", "divergence", "cluster"):
        value = getattr(config, table)
        names = {field.name for field in dataclasses.fields(value)} - set(identity_fields(value))
        for name in names:
            assert f"`{table}.{name}`" in text, f"{table}.{name}"
