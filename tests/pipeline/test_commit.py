"""The commit rule: objects, then markers, then the manifest, then the pointer."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.commit import Generation, current, read_pointer, require_same_identity
from pipeline.contract import MANIFEST_VERSION, ObjectEntry, canonical_json
from pipeline.errors import ConflictError, CorruptError, InputError, StorageError
from pipeline.storage import sha256

COMMAND = "python -m pipeline documents"
DATA = b"the documents of one partition"


@pytest.fixture
def generation(tmp_path: Path) -> Generation:
    return Generation(str(tmp_path), "documents", "00112233445566778899")


def path_of(generation: Generation, name: str) -> Path:
    return Path(generation.root, generation.name(name))


def names(root: str) -> list[str]:
    base = Path(root)
    return sorted(one.relative_to(base).as_posix() for one in base.rglob("*") if one.is_file())


def commit_one(generation: Generation, **fields: Any) -> dict[str, Any]:
    generation.complete("merge/000000", {"a.arrow": DATA}, {"documents": 3})
    return generation.commit({"counts": {"kept": 3}, **fields}, {"seconds": 1.0})


def test_objects_come_before_their_marker_and_the_pointer_last(generation: Generation) -> None:
    root = generation.root
    assert generation.marker("merge/000000") is None
    generation.complete("merge/000000", {"a.arrow": DATA}, {"documents": 3})
    assert generation.marker("merge/000000") == {"documents": 3}
    assert generation.manifest() is None
    assert read_pointer(root, "documents") is None
    body = generation.commit({"counts": {"kept": 3}}, {"seconds": 1.0})
    assert body == {
        "fingerprint": generation.fingerprint,
        "version": MANIFEST_VERSION,
        "counts": {"kept": 3},
    }
    assert generation.manifest() == body
    assert current(root, "documents", COMMAND) == (generation, body)
    prefix = generation.prefix
    assert names(root) == [
        f"{prefix}/a.arrow",
        f"{prefix}/manifest.json",
        f"{prefix}/markers/merge/000000.json",
        f"{prefix}/run_report.json",
        "documents/current.json",
    ]


def test_a_unit_whose_object_could_not_be_written_has_no_marker(generation: Generation) -> None:
    # The second object's name is taken by other bytes: the unit stops there.
    generation.storage.create(generation.name("b.arrow"), b"other")
    with pytest.raises(ConflictError):
        generation.complete("unit", {"a.arrow": DATA, "b.arrow": DATA}, {})
    assert generation.marker("unit") is None
    # What was written before stays, and a retry of that object is no conflict.
    generation.complete("unit", {"a.arrow": DATA}, {})
    assert generation.marker("unit") == {}


def test_a_marker_holds_sizes_and_checksums_of_its_objects(generation: Generation) -> None:
    commit_one(generation)
    marker = json.loads(path_of(generation, "markers/merge/000000.json").read_bytes())
    assert marker["objects"] == [{"name": "a.arrow", "bytes": len(DATA), "sha256": sha256(DATA)}]


def test_a_marker_with_one_changed_digit_is_refused_and_its_unit_can_be_done_anew(
    generation: Generation,
) -> None:
    commit_one(generation)
    path = path_of(generation, "markers/merge/000000.json")
    written = path.read_bytes()
    path.write_bytes(written.replace(b'"documents": 3', b'"documents": 8'))
    assert path.read_bytes() != written
    with pytest.raises(CorruptError, match=re.escape(f"{path}: not the bytes that were written")):
        generation.marker("merge/000000")
    path.unlink()
    commit_one(generation)
    assert path.read_bytes() == written


def test_a_marker_under_another_units_name_is_refused(generation: Generation) -> None:
    for unit in ("build/1", "build/2"):
        generation.complete(unit, {f"{unit}.arrow": unit.encode()}, {})
    first, second = (path_of(generation, f"markers/build/{one}.json") for one in (1, 2))
    second.write_bytes(first.read_bytes())
    with pytest.raises(CorruptError, match=r"build/2\.json: is the marker of build/1; remove"):
        generation.marker("build/2")


def test_a_unit_whose_object_was_cut_short_since_is_not_taken_as_done(
    generation: Generation,
) -> None:
    generation.complete("unit", {"a.arrow": DATA}, {"rows": 3})
    path = path_of(generation, "a.arrow")
    path.write_bytes(DATA[:-1])
    with pytest.raises(CorruptError, match=rf"a\.arrow: {len(DATA) - 1} bytes where {len(DATA)}"):
        generation.marker("unit")
    path.unlink()  # as the message says
    assert generation.marker("unit") is None
    generation.complete("unit", {"a.arrow": DATA}, {"rows": 3})
    assert generation.marker("unit") == {"rows": 3}


def test_the_same_unit_and_manifest_twice_is_a_retry(generation: Generation) -> None:
    first = commit_one(generation)
    before = {name: Path(generation.root, name).read_bytes() for name in names(generation.root)}
    assert commit_one(generation) == first
    after = {name: Path(generation.root, name).read_bytes() for name in names(generation.root)}
    assert before == after


def test_a_second_writer_with_other_bytes_is_a_conflict_and_changes_nothing(
    generation: Generation,
) -> None:
    body = commit_one(generation)
    with pytest.raises(ConflictError, match=r"a\.arrow"):
        generation.complete("merge/000000", {"a.arrow": b"other"}, {"documents": 3})
    with pytest.raises(ConflictError, match=r"markers/merge/000000\.json"):
        generation.complete("merge/000000", {"a.arrow": DATA}, {"documents": 4})
    with pytest.raises(ConflictError, match=r"manifest\.json"):
        generation.commit({"counts": {"kept": 4}}, {})
    assert current(generation.root, "documents", COMMAND) == (generation, body)


def test_a_manifest_holds_no_time_or_host(generation: Generation) -> None:
    commit_one(generation)
    assert json.loads(path_of(generation, "run_report.json").read_bytes()) == {"seconds": 1.0}
    assert b"seconds" not in path_of(generation, "manifest.json").read_bytes()


def test_a_new_generation_lies_beside_the_old_one_and_the_pointer_moves(
    generation: Generation,
) -> None:
    commit_one(generation)
    other = Generation(generation.root, "documents", "f" * 20)
    commit_one(other)
    assert current(generation.root, "documents", COMMAND)[0] == other
    assert generation.manifest() is not None
    generation.point()  # back to the old settings: nothing is made again
    assert current(generation.root, "documents", COMMAND)[0] == generation


def test_pointing_at_the_current_generation_writes_nothing(generation: Generation) -> None:
    commit_one(generation)
    pointer = Path(generation.root, "documents/current.json")
    before = pointer.stat().st_mtime_ns, pointer.stat().st_ino
    generation.point()
    assert (pointer.stat().st_mtime_ns, pointer.stat().st_ino) == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (DATA[:-1], f"{len(DATA) - 1} bytes where its manifest says {len(DATA)}"),
        (DATA + b"x", f"{len(DATA) + 1} bytes where its manifest says {len(DATA)}"),
        (b"T" + DATA[1:], "SHA-256 {} where its manifest says {}"),
    ],
    ids=["cut_short", "longer", "flipped"],
)
def test_an_object_changed_after_the_commit_is_named_with_both_values(
    generation: Generation, damage: bytes, message: str
) -> None:
    commit_one(generation)
    entry = ObjectEntry.of("a.arrow", DATA)
    assert generation.read(entry) == DATA
    path_of(generation, "a.arrow").write_bytes(damage)
    with pytest.raises(CorruptError) as caught:
        generation.read(entry)
    assert str(path_of(generation, "a.arrow")) in str(caught.value)
    assert message.format(sha256(damage), sha256(DATA)) in str(caught.value)


def test_a_deleted_object_is_named(generation: Generation) -> None:
    commit_one(generation)
    path_of(generation, "a.arrow").unlink()
    with pytest.raises(StorageError, match=r"a\.arrow: cannot read"):
        generation.read(ObjectEntry.of("a.arrow", DATA))


def test_a_manifest_changed_after_the_commit_is_refused(generation: Generation) -> None:
    commit_one(generation)
    path = path_of(generation, "manifest.json")
    committed = path.read_bytes()
    changed = committed.replace(b'"kept": 3', b'"kept": 4')
    assert changed != committed
    path.write_bytes(changed)
    with pytest.raises(CorruptError) as caught:
        current(generation.root, "documents", COMMAND)
    for part in (str(path), sha256(committed), sha256(changed), COMMAND):
        assert part in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"{}", b'{"fingerprint": 3}', b"\xff"])
def test_a_damaged_pointer_is_named(generation: Generation, data: bytes) -> None:
    commit_one(generation)
    path = Path(generation.root, "documents/current.json")
    path.write_bytes(data)
    with pytest.raises(CorruptError) as caught:
        current(generation.root, "documents", COMMAND)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["manifest.json", "markers/merge/000000.json"])
def test_json_that_was_cut_short_is_named(generation: Generation, name: str) -> None:
    commit_one(generation)
    path = path_of(generation, name)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptError) as caught:
        generation.manifest() if name == "manifest.json" else generation.marker("merge/000000")
    assert f"{path}: not " in str(caught.value)


def test_a_manifest_of_another_version_is_refused(generation: Generation) -> None:
    generation.storage.create(generation.name("manifest.json"), canonical_json({"version": 99}))
    with pytest.raises(
        CorruptError, match=f"version 99; this clozeline reads version {MANIFEST_VERSION}"
    ):
        generation.manifest()


def test_a_stage_that_was_never_completed_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        current(str(tmp_path), "documents", COMMAND)
    assert f"{tmp_path}/documents/current.json: no documents yet; run `{COMMAND}` first" == str(
        caught.value
    )


def test_upstream_made_with_other_settings_names_key_values_and_command(
    generation: Generation,
) -> None:
    made = {"seed": 0, "documents": {"partitions": 4, "sources": [{"name": "a", "locale": "en"}]}}
    require_same_identity(generation, made, json.loads(json.dumps(made)), COMMAND)
    wanted = {
        "seed": 1,
        "documents": {"partitions": 4, "sources": [{"name": "a", "locale": "de"}], "new": True},
    }
    with pytest.raises(InputError) as caught:
        require_same_identity(generation, made, wanted, COMMAND)
    message = str(caught.value)
    assert message.startswith(f"{generation.root}/{generation.prefix}: made with other settings")
    for part in (
        "seed: 0 there, 1 here",
        "documents.sources.0.locale: 'en' there, 'de' here",
        "documents.new: None there, True here",
        f"run `{COMMAND}` first",
    ):
        assert part in message
    assert "partitions" not in message


def test_another_number_of_sources_is_a_difference(generation: Generation) -> None:
    with pytest.raises(InputError, match=r"sources: \[1\] there, \[1, 2\] here"):
        require_same_identity(generation, {"sources": [1]}, {"sources": [1, 2]}, COMMAND)


def test_a_generation_travels_to_workers(generation: Generation) -> None:
    commit_one(generation)
    copy = pickle.loads(pickle.dumps(generation))
    assert copy == generation
    assert copy.read(ObjectEntry.of("a.arrow", DATA)) == DATA
