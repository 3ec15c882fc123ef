"""The same bytes whoever works, in whatever order, and if two do the same at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Head, write_config
from tests.integration.corpus import write_corpus
from tests.integration.product import module, run, started
from tests.integration.run_folder import contents, differences, manifest, require_whole, units

pytestmark = pytest.mark.ray


def test_the_undisturbed_run_reads_the_whole_corpus(undisturbed: Path) -> None:
    counts = manifest(undisturbed, "documents")["counts"]
    assert units(undisturbed, "documents")["split"]["done_now"] >= 10
    assert counts["input_files"] == 16
    assert counts["kept"] > 400
    assert counts["dropped_duplicate"] > 100  # the repeated files
    assert counts["repeated_paragraphs_dropped"] > 10
    assert counts["repetitions"] > 50  # the weight of the articles
    gone = sum(number for name, number in counts.items() if name.startswith("dropped_"))
    assert counts["read"] + counts["repetitions"] == counts["kept"] + gone
    assert counts["sentences"] > 3 * counts["kept"]
    (instances,) = manifest(undisturbed, "instances")["sets"]
    for split in ("train", "held_out"):
        assert instances["counts"][split]["is_next"] > 0
        assert instances["counts"][split]["random_next"] > 0
    assert len(instances["shards"]) > 7
    require_whole(undisturbed)


def test_two_workers_and_files_created_in_reverse_change_no_byte(
    undisturbed: Path, head: Head, tmp_path: Path
) -> None:
    corpus = write_corpus(tmp_path / "corpus", reverse=True)
    root = tmp_path / "run"
    config = write_config(tmp_path / "run.toml", root=root, corpus=corpus)
    arguments = ("--config", config, "--cluster.workers", "2")
    run("pipeline", "run", *arguments, **head.join).require_success()
    assert differences(contents(undisturbed), contents(root)) == []


def test_two_jobs_that_do_the_same_at_once_leave_one_set_of_shards(
    undisturbed: Path, config: str, head: Head, tmp_path: Path
) -> None:
    command = module("pipeline", "run", "--config", config, "--root", str(tmp_path))
    with started(*command, **head.join) as one, started(*command, **head.join) as other:
        one.wait().require_success()
        other.wait().require_success()
    assert differences(contents(undisturbed), contents(tmp_path)) == []
    require_whole(tmp_path)
