"""verify finds every kind of damage; gc removes what nothing needs and nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from pipeline import artefacts
from pipeline.__main__ import main
from pipeline.commit import Generation
from pipeline.config import MaskingConfig
from pipeline.contract import ObjectEntry, canonical_json
from pipeline.errors import CorruptError, InputError
from pipeline.instance_set import InstanceSet
from pipeline.storage import TEMPORARY_PREFIX
from pipeline.vocabulary import vocab_txt
from tests.pipeline.small_run import FINGERPRINTS, RUN_REPORT, VOCABULARY, write_run

DOCUMENTS = f"documents/{FINGERPRINTS['documents']}"
VOCABULARIES = f"vocabulary/{FINGERPRINTS['vocabulary']}"
INSTANCES = f"instances/{FINGERPRINTS['instances']}"
# Every object that a manifest names.
OBJECTS = [
    f"{DOCUMENTS}/train-00000.arrow",
    f"{DOCUMENTS}/held_out-00000.arrow",
    f"{VOCABULARIES}/tokenizer.json",
    f"{VOCABULARIES}/vocab.txt",
    f"{INSTANCES}/train-00001-00000.arrow",
    f"{INSTANCES}/held_out-00002-00000.arrow",
    f"{INSTANCES}/train-00000-00000.lengths",
    f"{INSTANCES}/tokenizer.json",
    f"{INSTANCES}/vocab.txt",
]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def run(whole_run: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(whole_run, tmp_path / "run"))


def faults(uri: Path) -> list[str]:
    return [f"{what}: {fault}" for what, found in artefacts.check(str(uri)) for fault in found]


def files_below(path: Path) -> set[str]:
    return {one.relative_to(path).as_posix() for one in path.rglob("*") if one.is_file()}


def test_a_whole_run_has_no_fault(whole_run: Path) -> None:
    assert faults(whole_run) == []
    assert main(["verify", str(whole_run)]) == 0


def test_static_instances_have_no_fault(tmp_path: Path) -> None:
    root = write_run(tmp_path, static_rules=MaskingConfig())
    assert InstanceSet.open(str(root)).static_masking
    assert faults(root) == []


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("damage", ["cut_short", "flipped", "longer", "deleted"])
def test_damage_to_any_object_is_found_and_named(run: Path, name: str, damage: str) -> None:
    path = run / name
    data = bytearray(path.read_bytes())
    if damage == "deleted":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        whole = path.read_bytes()
        path.write_bytes(
            {"cut_short": whole[:-1], "longer": whole + b"\0", "flipped": data}[damage]
        )
    found = faults(run)
    assert any(str(path) in fault for fault in found)
    assert all(fault.startswith(name.rpartition("/")[0]) for fault in found)
    assert main(["verify", str(run)]) == 1


def test_an_exchanged_vocabulary_is_found(run: Path) -> None:
    other = [*VOCABULARY[:-2], VOCABULARY[-1], VOCABULARY[-2]]
    for folder in (VOCABULARIES, INSTANCES):
        (run / folder / "vocab.txt").write_bytes(vocab_txt(other))
    found = faults(run)
    assert [fault.split(":")[0] for fault in found] == [VOCABULARIES, INSTANCES]
    assert all("vocab.txt: SHA-256" in fault for fault in found)
    with pytest.raises(CorruptError, match=r"vocab\.txt: SHA-256"):
        _ = InstanceSet.open(str(run)).vocab_txt


@pytest.mark.parametrize("folder", [DOCUMENTS, VOCABULARIES, INSTANCES])
def test_an_edited_manifest_is_found(run: Path, folder: str) -> None:
    path = run / folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["new"] = {}
    path.write_bytes(canonical_json(manifest))
    (fault,) = faults(run)
    assert fault.startswith(f"{folder}: ") and f"{folder}/manifest.json: SHA-256" in fault
    assert "where current.json says" in fault
    # By its own name too, not only by way of the pointer.
    assert faults(run / folder) == [fault]
    assert main(["verify", str(run / folder)]) == 1


@pytest.mark.parametrize(
    ("folder", "edit", "message"),
    [
        (DOCUMENTS, ('"kept": 40', '"kept": 41'), "40 documents, the manifest says 41"),
        (DOCUMENTS, (r'"documents": \d+', '"documents": 1000'), "the manifest says 1000"),
        (VOCABULARIES, ('"vocab_size": 65', '"vocab_size": 66'), "65 entries, not 66"),
        (INSTANCES, ('"instances": 80', '"instances": 81'), "train: 80 instances and"),
        (INSTANCES, ('"vocab_size": 65', '"vocab_size": 60'), "beyond 60 entries"),
        (
            INSTANCES,
            (r'("split": "train",\s+"tokens": )\d+', r"\g<1>1"),
            "the manifest says 40 and 1",
        ),
    ],
)
def test_a_manifest_that_disagrees_with_its_objects_is_found_without_a_pointer(
    run: Path, folder: str, edit: tuple[str, str], message: str
) -> None:
    (run / folder.split("/")[0] / "current.json").unlink()
    path = run / folder / "manifest.json"
    edited, replaced = re.subn(*edit, path.read_text(), count=1)
    assert replaced
    path.write_text(edited)
    found = faults(run / folder)
    assert found and any(message in fault for fault in found)


def test_a_manifest_that_names_bytes_that_are_no_arrow_file_is_found(tmp_path: Path) -> None:
    generation = Generation(str(tmp_path), "documents", "f" * 20)
    generation.complete("merge/000000", {"train-00000.arrow": b"no arrow"}, {})
    entry = dataclasses.asdict(ObjectEntry.of("train-00000.arrow", b"no arrow"))
    file = {"object": entry, "split": "train", "documents": 0}
    generation.commit({"counts": {"kept": 0}, "files": [file], "inputs": {}}, RUN_REPORT)
    (fault,) = faults(tmp_path)
    assert "train-00000.arrow: not a valid Arrow file" in fault


@pytest.mark.parametrize("damage", [b"", b"{}", None])
def test_a_damaged_marker_is_found(run: Path, damage: bytes | None) -> None:
    path = run / DOCUMENTS / "markers/merge/000001.json"
    path.write_bytes(path.read_bytes().replace(b"merge", b"merg3") if damage is None else damage)
    (fault,) = faults(run)
    assert f"{DOCUMENTS}: {path}: not " in fault


def test_a_generation_under_another_name_is_found(run: Path) -> None:
    (run / DOCUMENTS).rename(run / "documents" / ("e" * 20))
    (fault,) = faults(run / "documents" / ("e" * 20))
    assert f"manifest.json: is the manifest of {FINGERPRINTS['documents']}" in fault


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{DOCUMENTS}/manifest.json", "manifest.json: not valid JSON"),
        ("documents/current.json", "documents/current.json: names no generation"),
    ],
)
def test_a_manifest_or_pointer_cut_short_hides_no_other_fault(
    run: Path, name: str, message: str
) -> None:
    (run / name).write_bytes((run / name).read_bytes()[:-10])
    (run / VOCABULARIES / "vocab.txt").unlink()
    first, second = faults(run)
    assert message in first
    assert "vocab.txt" in second
    with pytest.raises(CorruptError, match=re.escape(message)):
        artefacts.find(str(run))[0].manifest()


@pytest.mark.parametrize("name", ["documents/current.json", f"{DOCUMENTS}/run_report.json"])
def test_what_the_store_does_not_give_hides_no_other_fault(run: Path, name: str) -> None:
    (run / name).unlink()
    (run / name).mkdir()  # a right to read that is missing is no other error
    (run / VOCABULARIES / "vocab.txt").unlink()
    first, second = faults(run)
    assert "cannot read" in first
    assert "vocab.txt" in second


@pytest.mark.parametrize("uri", [".", "documents"])
def test_a_finished_stage_that_lost_its_pointer_is_a_fault(run: Path, uri: str) -> None:
    (run / "documents" / "current.json").unlink()
    (fault,) = faults(run / uri)
    assert fault.startswith("documents/current.json: ")
    assert "missing beside finished work; run the stage again" in fault


def test_a_pointer_to_a_generation_that_is_gone_is_a_fault(run: Path) -> None:
    shutil.rmtree(run / DOCUMENTS)
    fault, *made_from_it = faults(run)
    assert f"{DOCUMENTS}/manifest.json: missing" in fault
    assert made_from_it and all(f"{DOCUMENTS}: missing" in one for one in made_from_it)


@pytest.mark.parametrize(("stage", "others"), [("documents", 2), ("vocabulary", 1)])
def test_a_stage_that_is_gone_is_missed_by_what_was_made_from_it(
    run: Path, stage: str, others: int
) -> None:
    shutil.rmtree(run / stage)
    found = faults(run)
    assert len(found) == others
    assert all("missing or not finished" in one and "run that stage again" in one for one in found)
    # A generation by itself, as somebody copies it elsewhere, needs nothing else.
    assert faults(run / INSTANCES) == []


def test_an_object_that_nothing_names_is_a_fault(run: Path) -> None:
    shutil.copy(run / OBJECTS[4], run / INSTANCES / "train-00009-00000.arrow")
    (fault,) = faults(run)
    assert "train-00009-00000.arrow: neither the manifest nor a marker names it" in fault


def test_a_run_a_stage_a_generation_and_its_manifest_are_found(
    whole_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stages(uri: str) -> list[str]:
        return [one.stage for one in artefacts.find(uri)]

    assert stages(str(whole_run)) == ["documents", "vocabulary", "instances"]
    assert stages(f"{whole_run}/") == ["documents", "vocabulary", "instances"]
    for name in ("instances", INSTANCES, f"{INSTANCES}/", f"{INSTANCES}/manifest.json"):
        assert stages(f"{whole_run}/{name}") == ["instances"]
    monkeypatch.chdir(whole_run)
    for name in ("instances", INSTANCES):
        assert stages(name) == ["instances"]
    monkeypatch.chdir(whole_run.parent)
    assert stages("run") == ["documents", "vocabulary", "instances"]


@pytest.mark.parametrize("name", ["absent", ".", f"{DOCUMENTS}/markers"])
def test_what_is_no_artefact_is_refused(tmp_path: Path, name: str) -> None:
    root = write_run(tmp_path / "run")
    uri = tmp_path if name == "." else root / name
    with pytest.raises(InputError, match="no finished stage here"):
        artefacts.find(str(uri))


def test_verify_finds_damage_of_a_training_and_an_export(run: Path) -> None:
    for stage in ("training", "export"):
        generation = Generation(str(run), stage, "f" * 20)
        entry = dataclasses.asdict(ObjectEntry.of("model.safetensors", b"weights"))
        generation.complete(stage, {"model.safetensors": b"weights"}, {})
        generation.commit({"inputs": {}, "objects": {"model.safetensors": entry}}, RUN_REPORT)
    (run / "training" / ("f" * 20) / "metrics.jsonl").write_text('{"step": 1}\n')
    assert faults(run) == []
    (run / "export" / ("f" * 20) / "model.safetensors").write_bytes(b"wEights")
    (run / "training" / ("f" * 20) / "model.safetensors").unlink()
    missing, changed = faults(run)
    assert "model.safetensors: cannot read" in missing
    assert "its bytes were changed" in changed


def test_a_changed_manifest_is_not_taken_for_finished_work(run: Path) -> None:
    path = run / INSTANCES / "manifest.json"
    path.write_text(path.read_text().replace('"seed": ', '"seed": 1'))
    with pytest.raises(CorruptError, match=r"SHA-256 .* where current\.json says"):
        Generation(str(run), *INSTANCES.split("/")).manifest()


def test_gc_finds_nothing_in_a_run_without_leftovers(run: Path) -> None:
    shutil.rmtree(run / DOCUMENTS / "passes")
    assert artefacts.garbage(str(run)) == {}


def test_gc_lists_old_generations_finished_passes_and_temporary_files(run: Path) -> None:
    old = Generation(str(run), "vocabulary", "0" * 20)
    old.complete("train", {"vocab.txt": b"old"}, {})
    pointer = (run / "vocabulary" / "current.json").read_bytes()
    old.commit({"inputs": {}}, {})
    (run / "vocabulary" / "current.json").write_bytes(pointer)
    killed = Generation(str(run), "instances", "2" * 20)
    killed.complete("build/000000", {"x.arrow": b"12345"}, {})
    leftovers = [
        f"{INSTANCES}/{TEMPORARY_PREFIX}abc",
        f"{DOCUMENTS}/markers/{TEMPORARY_PREFIX}def",
        f"documents/{TEMPORARY_PREFIX}ghi",
    ]
    for name in leftovers:
        (run / name).write_bytes(b"left")
    groups = artefacts.garbage(str(run))
    assert sorted(one.name for one in artefacts.leftovers(str(run))) == sorted(leftovers)
    assert {group: sorted(name for name, _ in objects) for group, objects in groups.items()} == {
        f"{DOCUMENTS}/passes (finished)": [f"{DOCUMENTS}/passes/split/000000.run"],
        f"{old.prefix} (nothing points to it)": [
            f"{old.prefix}/manifest.json",
            f"{old.prefix}/markers/train.json",
            f"{old.prefix}/run_report.json",
            f"{old.prefix}/vocab.txt",
        ],
    }
    # Unfinished work is gone on from: only on request.
    asked = artefacts.garbage(str(run), unfinished=True)
    (more,) = asked.keys() - groups.keys()
    assert more == f"{killed.prefix} (not finished)"
    assert (f"{killed.prefix}/x.arrow", 5) in asked[more]


def test_gc_keeps_the_inputs_of_current_generations(run: Path) -> None:
    # The vocabulary moved on, the instances were not made again: they still name the old one.
    newer = Generation(str(run), "vocabulary", "9" * 20)
    newer.commit({"inputs": {"documents": FINGERPRINTS["documents"]}}, {})
    assert not any(group.startswith("vocabulary/") for group in artefacts.garbage(str(run)))


def test_gc_keeps_what_a_current_generation_was_made_from_link_by_link(run: Path) -> None:
    newer = Generation(str(run), "documents", "9" * 20)
    newer.commit({"inputs": {"texts": "0"}}, {})
    groups = artefacts.garbage(str(run))
    assert list(groups) == [f"{DOCUMENTS}/passes (finished)"]


def test_gc_removes_what_it_lists_when_asked_and_leaves_the_rest_whole(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = (run / "vocabulary" / "current.json").read_bytes()
    Generation(str(run), "vocabulary", "0" * 20).commit({"inputs": {}}, {})
    (run / "vocabulary" / "current.json").write_bytes(pointer)
    left, begun = (f"{INSTANCES}/{TEMPORARY_PREFIX}{name}" for name in ("killed", "at_work"))
    for name in (left, begun):
        (run / name).write_bytes(b"left")
    os.utime(run / left, (0, time.time() - 25 * 3600))
    before = files_below(run)
    listed = {name for objects in artefacts.garbage(str(run)).values() for name, _ in objects}
    listed.add(left)
    assert len(listed) == 4

    assert main(["gc", str(run)]) == 0
    assert files_below(run) == before
    said = capsys.readouterr().out
    assert "temporary files of killed writers: 1, 4 bytes" in said
    assert "1 begun less than 24 hours ago stay; --leftover_hours 0 takes them too" in said
    assert "4 objects would be removed with --delete" in said

    assert main(["gc", str(run), "--delete"]) == 0
    assert files_below(run) == before - listed
    assert "4 objects removed" in capsys.readouterr().out
    assert faults(run) == []
    assert artefacts.garbage(str(run)) == {}

    assert main(["gc", str(run), "--delete", "--leftover_hours", "0"]) == 0
    assert files_below(run) == before - listed - {begun}


def test_gc_refuses_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a run")
    with pytest.raises(InputError, match="no stage's folder here; name a run's root"):
        artefacts.garbage(str(tmp_path))


def test_gc_removes_nothing_while_a_current_manifest_is_missing(run: Path) -> None:
    (run / INSTANCES / "manifest.json").unlink()
    before = files_below(run)
    with pytest.raises(CorruptError, match=r"has no manifest\.json, so what it needs is unknown"):
        main(["gc", str(run), "--delete"])
    assert files_below(run) == before


@pytest.mark.parametrize("damage", [b"", b'{"seconds": 1.0}', b"[]", None])
def test_a_run_report_that_is_missing_or_damaged_is_a_fault(
    run: Path, damage: bytes | None
) -> None:
    path = run / DOCUMENTS / "run_report.json"
    path.unlink() if damage is None else path.write_bytes(damage)
    (fault,) = faults(run)
    assert fault.startswith(f"{DOCUMENTS}: run_report.json: missing or damaged")


def test_damaged_lines_of_a_trainings_log_are_faults(run: Path) -> None:
    generation = Generation(str(run), "training", "f" * 20)
    generation.commit({"inputs": {}, "objects": {}}, RUN_REPORT)
    (fault,) = faults(run)
    assert "metrics.jsonl: missing" in fault
    (run / generation.name("metrics.jsonl")).write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    (fault,) = faults(run)
    assert "metrics.jsonl: line 2 is not JSON" in fault
