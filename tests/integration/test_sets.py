"""Two sets of instances without pairs from one run, and a training on one of them to its report."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

from pipeline.__main__ import main
from pipeline.commit import Generation
from pipeline.commit import current as current_of
from pipeline.config import load
from pipeline.jobs.instances import Plan, build_unit, units_of
from tests.integration.conftest import Head
from tests.integration.product import run
from tests.integration.run_folder import current, manifest, require_whole

pytestmark = pytest.mark.ray

OBJECTIVE = ("--instances.objective", "full_sentences")
LENGTHS = ("--instances.max_seq_length", "32", "64")


@pytest.fixture(scope="module")
def made(undisturbed: Path, config: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sets of 32 and 64 tokens, from five workers at once."""
    root = tmp_path_factory.mktemp("made")
    for stage in ("documents", "vocabulary"):
        shutil.copytree(undisturbed / stage, root / stage)
    arguments = ("--config", config, "--root", str(root), "--cluster.workers", "5")
    run("pipeline", "instances", *arguments, *OBJECTIVE, *LENGTHS).require_success()
    return root


@pytest.mark.parametrize("length", [32, 64])
def test_each_set_has_the_bytes_that_a_run_for_it_alone_makes(
    made: Path, config: str, tmp_path: Path, length: int
) -> None:
    settings = load(config)
    alone = dataclasses.replace(
        settings.instances, objective="full_sentences", max_seq_length=length
    )
    settings = dataclasses.replace(settings, instances=alone)
    texts, texts_manifest = current_of(str(made), "documents", "")
    words, _ = current_of(str(made), "vocabulary", "")
    plan = Plan(Generation(str(tmp_path), "instances", "alone"), texts, words, settings)
    for unit in reversed(units_of(texts_manifest)):
        build_unit(plan, unit)
    theirs = {
        path.name: path.read_bytes()
        for path in (tmp_path / "instances/alone").iterdir()
        if path.is_file()
    }
    ours = {
        path.name: path.read_bytes()
        for path in (current(made, "instances") / f"{length}").iterdir()
    }
    assert len(ours) >= 2 * 7 and ours == theirs


def test_verify_stats_and_inspect_know_both_sets(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_whole(made)
    short, long = manifest(made, "instances")["sets"]
    for one in (short, long):
        card = one["data_card"]["train"]
        assert card["used_share"] == 1.0 and 0.7 < card["fill"] <= 1.0
        assert "label_one_share" not in card
    assert short["counts"]["train"]["instances"] > 1.8 * long["counts"]["train"]["instances"]
    for command in ("stats", "inspect"):
        assert main([command, str(made)]) == 0
        said = capsys.readouterr().out
        for length in (32, 64):
            assert f"{current(made, 'instances').name}, {length} tokens" in said
    assert "  B: " not in said and "next_sentence_label" not in said
    damaged = next((current(made, "instances") / "64").glob("*.arrow"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1])
    try:
        assert main(["verify", str(made)]) == 1
        assert f"64/{damaged.name}" in capsys.readouterr().out
    finally:
        damaged.write_bytes(whole)


def test_a_set_without_pairs_is_trained_exported_and_reported(
    made: Path, config: str, head: Head
) -> None:
    arguments = ("--config", config, "--root", str(made), *OBJECTIVE, *LENGTHS)
    chosen = ("--training.max_seq_length", "64")
    run("trainer", "run", *arguments, *chosen, **head.join).require_success()
    require_whole(made)
    training = manifest(made, "training")
    assert training["max_seq_length"] == 64
    assert training["evaluation"]["pairs"] == 0 and training["evaluation"]["masked_tokens"] > 100
    summary = json.loads((made / "summary.json").read_bytes())
    assert not [name for name in summary if "nsp" in name]
    assert "fill (tokens of 64 an instance)" in (made / "report.html").read_text()
    folder = current(made, "export") / "huggingface"
    guess = pipeline(
        "fill-mask",
        model=AutoModelForMaskedLM.from_pretrained(folder),
        tokenizer=AutoTokenizer.from_pretrained(folder),
    )
    assert len(guess("the [MASK] returns a list .")) == 5
