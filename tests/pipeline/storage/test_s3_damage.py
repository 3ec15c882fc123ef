"""`verify` finds on an object store what it finds on a disk, and `gc` removes the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.artefacts import check
from pipeline.commit import Generation
from pipeline.storage import Storage
from tests.pipeline.small_run import FINGERPRINTS, write_run

# boto3's own sockets are left to the collector.
pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("ignore::ResourceWarning")]
DOCUMENTS, VOCABULARIES, INSTANCES = (f"{stage}/{name}" for stage, name in FINGERPRINTS.items())


@pytest.fixture
def run(store: Storage, tmp_path: Path) -> Storage:
    """A small finished run in the bucket."""
    local = write_run(tmp_path)
    for path in sorted(local.rglob("*")):
        if path.is_file():
            store.create(path.relative_to(local).as_posix(), path.read_bytes())
    return store


def faults(run: Storage) -> list[str]:
    return [fault for _, found in check(run.uri) for fault in found]


def test_every_kind_of_damage_is_found(run: Storage, capsys: pytest.CaptureFixture[str]) -> None:
    assert faults(run) == []
    shard = f"{INSTANCES}/train-00000-00000.arrow"
    whole = run.read(shard)
    damages = {
        "cut short": (shard, whole[:-100]),
        "a changed byte": (shard, whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:]),
        "rows more": (shard, whole + whole),
        "another object": (shard, run.read(f"{INSTANCES}/train-00001-00000.arrow")),
        "missing": (shard, None),
        "a sidecar": (f"{INSTANCES}/held_out-00002-00000.lengths", b"\0\0"),
        "a marker": (f"{INSTANCES}/markers/build/000000.json", b"{}"),
        "a manifest": (f"{DOCUMENTS}/manifest.json", b'{"version": 1}'),
        "a pointer": ("vocabulary/current.json", b""),
        "a vocabulary": (f"{VOCABULARIES}/vocab.txt", None),
        "a report": (f"{VOCABULARIES}/run_report.json", b"[]"),
    }
    for kind, (name, damaged) in damages.items():
        before = run.read(name)
        if damaged is None:
            run.delete(name)
        else:
            run.replace(name, damaged)
        found = faults(run)
        assert len(found) == 1, (kind, found)
        assert name.rpartition("/")[2] in found[0], kind
        run.replace(name, before)
    run.delete(shard)
    assert main(["verify", run.uri]) == 1
    assert "cannot read: NoSuchKey (request id " in capsys.readouterr().out
    run.create(shard, whole)
    assert main(["verify", run.uri]) == 0


def test_gc_removes_what_nothing_points_to(
    run: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = run.read("vocabulary/current.json")
    old = Generation(run.uri, "vocabulary", "0" * 20)
    old.complete("train", {"vocab.txt": b"old"}, {})
    old.commit({"inputs": {}}, {})
    run.replace("vocabulary/current.json", pointer)
    kept = {name for name, _ in run.list("") if not name.startswith(old.prefix)}
    kept -= {name for name in kept if "/passes/" in name}
    assert main(["gc", run.uri, "--delete"]) == 0
    assert f"{old.prefix} (nothing points to it): 4 objects" in capsys.readouterr().out
    assert {name for name, _ in run.list("")} == kept
    assert faults(run) == []
