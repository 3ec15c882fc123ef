"""A stage's run report: attempts add up, and nothing depends on it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from pipeline import stage as stage_module
from pipeline.commit import Generation
from pipeline.contract import ObjectEntry
from pipeline.stage import Stage, read_run_report


@pytest.fixture
def generation(tmp_path: Path) -> Generation:
    return Generation(str(tmp_path), "documents", "0" * 20)


class KilledError(Exception):
    """Stands for the end of an attempt that could not say goodbye."""


def interrupted(generation: Generation, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that ends in the middle after its report was written at least once."""
    monkeypatch.setattr(stage_module, "_REPORT_SECONDS", 0.02)
    path = Path(generation.root, generation.name("run_report.json"))
    before = path.read_bytes() if path.exists() else b""
    with pytest.raises(KilledError), Stage(generation):
        while not path.exists() or path.read_bytes() == before:
            pass
        raise KilledError


def test_the_seconds_of_attempts_that_were_killed_are_added_up(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = []
    for _ in range(3):
        interrupted(generation, monkeypatch)
        reports.append(read_run_report(generation))
    with Stage(generation) as stage:
        stage.count_unit("merge/000000", done_before=True)
        stage.commit({"counts": {}})
    reports.append(read_run_report(generation))
    assert [one["attempts"] for one in reports if one] == [1, 2, 3, 4]
    seconds = [one["seconds"] for one in reports if one]
    assert seconds == sorted(seconds) and seconds[0] > 0.0
    assert len({one["started_unix_seconds"] for one in reports if one}) == 1
    assert reports[-1] and reports[-1]["units"] == {"merge": {"done_before": 1, "done_now": 0}}


def test_a_finished_stage_keeps_its_report(generation: Generation) -> None:
    with Stage(generation) as stage:
        stage.commit({"counts": {}})
    report = read_run_report(generation)
    with Stage(generation) as stage:
        assert stage.manifest is not None
    assert read_run_report(generation) == report


@pytest.mark.parametrize("damaged", [b"", b"[1]", b'{"seconds": "long"}'])
def test_a_damaged_report_is_begun_anew(generation: Generation, damaged: bytes) -> None:
    generation.storage.replace(generation.name("run_report.json"), damaged)
    assert read_run_report(generation) is None
    with Stage(generation) as stage:
        stage.commit({"counts": {}})
    report = read_run_report(generation)
    assert report is not None and report["attempts"] == 1
    assert json.loads(generation.storage.read(generation.name("run_report.json"))) == report


def test_a_finished_generation_that_lost_an_object_is_made_whole_again(
    generation: Generation, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> bool:
        """Whether there was anything to do."""
        with Stage(generation, repairs=True) as stage:
            if stage.manifest is not None:
                return False
            if generation.marker("unit") is None:
                generation.complete("unit", {"deep/a.arrow": b"rows"}, {})
            entry = ObjectEntry.of("deep/a.arrow", b"rows")
            stage.commit({"files": [{"object": asdict(entry), "rows": 1}]})
            return True

    path = Path(generation.root, generation.name("deep/a.arrow"))
    assert [run(), run()] == [True, False]
    manifest = generation.manifest()
    path.unlink()
    capsys.readouterr()
    assert [run(), run()] == [True, False]
    assert "1 of its objects are gone, such as deep/a.arrow" in capsys.readouterr().out
    assert path.read_bytes() == b"rows" and generation.manifest() == manifest
