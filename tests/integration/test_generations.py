"""A changed identity field makes generations of what depends on it; an operational one nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.integration.conftest import Head, TrainedRun
from tests.integration.product import run
from tests.integration.run_folder import (
    DATA_STAGES,
    contents,
    copy_data,
    current,
    generations,
    require_whole,
)
from tests.ports import free_port
from trainer.training_run import open_instances, training_generation

pytestmark = pytest.mark.ray


def remade(root: Path, *arguments: str, head: Head) -> set[str]:
    """Run the data half and return the stages that made a new generation.

    Whatever was there before still is, to the byte, but for the pointers.
    """
    before, old = generations(root), contents(root)
    run("pipeline", "run", "--root", str(root), *arguments, **head.join).require_success()
    new = contents(root)
    for name, data in old.items():
        assert name.endswith("/current.json") or new[name] == data, name
    return {name.split("/")[0] for name in generations(root) - before}


def test_each_identity_field_remakes_exactly_the_stages_that_depend_on_it(
    undisturbed: Path, config: str, head: Head, tmp_path: Path
) -> None:
    root = copy_data(undisturbed, tmp_path)
    given = ("--config", config)
    dynamic = ("--masking.probability", "0.3")
    assert remade(root, *given, *dynamic, head=head) == set()
    static = ("--masking.mode", "static")
    assert remade(root, *given, *static, head=head) == {"instances"}
    assert remade(root, *given, *static, *dynamic, head=head) == {"instances"}
    assert remade(root, *given, "--vocabulary.vocab_size", "500", head=head) == {
        "vocabulary",
        "instances",
    }
    assert remade(root, *given, "--documents.held_out_fraction", "0.2", head=head) == set(
        DATA_STAGES
    )
    assert remade(root, *given, "--seed", "8", head=head) == set(DATA_STAGES)
    require_whole(root)
    # Back to the first config: all is there.
    assert remade(root, *given, head=head) == set()
    for stage in DATA_STAGES:
        assert current(root, stage).name == current(undisturbed, stage).name


def test_operational_fields_redo_nothing(trained: TrainedRun, config: str, head: Head) -> None:
    root = trained.root
    before = {path: path.stat().st_mtime_ns for path in root.glob("*/*/run_report.json")}
    assert len(before) == 5
    operational = (
        *("--cluster.workers", "2"),
        *("--cluster.object_store_bytes", "100000000"),
        *("--cluster.metrics_port", str(free_port())),
    )
    given = ("--config", config, "--root", str(root), *operational)
    data = run("pipeline", "run", *given, **head.join).require_success()
    model = run(
        "trainer",
        *("run", *given, "--training.workers", "1", "--training.checkpoint_seconds", "9"),
        *("--training.micro_batch_size", "4"),
    ).require_success()
    for stage, said in (
        *((stage, data.stdout) for stage in DATA_STAGES),
        *((stage, model.stdout) for stage in ("training", "export")),
    ):
        assert f"{stage}: done already" in said
    assert before == {path: path.stat().st_mtime_ns for path in root.glob("*/*/run_report.json")}


def test_a_training_depends_on_its_masks_its_model_and_its_seed(trained: TrainedRun) -> None:
    settings = trained.settings
    instances = open_instances(settings)
    names = {
        training_generation(changed, instances).fingerprint
        for changed in (
            settings,
            dataclasses.replace(
                settings, masking=dataclasses.replace(settings.masking, probability=0.3)
            ),
            dataclasses.replace(
                settings, model=dataclasses.replace(settings.model, intermediate_size=128)
            ),
            dataclasses.replace(settings, seed=8),
        )
    }
    assert len(names) == 4
    other = dataclasses.replace(settings.training, workers=1, checkpoint_seconds=9.0)
    operational = dataclasses.replace(settings, training=other)
    assert training_generation(operational, instances).fingerprint in names
