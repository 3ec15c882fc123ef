"""What lies in a run's folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pipeline.__main__ import main

DATA_STAGES = ("documents", "vocabulary", "instances")


def current(root: Path, stage: str) -> Path:
    """The folder of the stage's current generation."""
    pointer = json.loads((root / stage / "current.json").read_bytes())
    return root / stage / pointer["fingerprint"]


def manifest(root: Path, stage: str) -> Any:
    return json.loads((current(root, stage) / "manifest.json").read_bytes())


def units(root: Path, stage: str) -> Any:
    """What the last run that finished the stage found done and did, by pass."""
    return json.loads((current(root, stage) / "run_report.json").read_bytes())["units"]


def generations(root: Path) -> set[str]:
    """STAGE/FINGERPRINT of every generation, complete or not."""
    return {
        path.relative_to(root).as_posix()
        for stage in DATA_STAGES
        for path in (root / stage).glob("*")
        if path.is_dir()
    }


def markers(root: Path, stage: str, name: str = "**/*") -> list[Path]:
    """Markers of a stage of a run that has one generation of it, without what holds their place."""
    return sorted(path for path in root.glob(f"{stage}/*/markers/{name}.json") if path.is_file())


def contents(root: Path) -> dict[str, bytes]:
    """Every object of the data stages by name: shards, manifests, markers, pointers.

    All but what tells of one run (run_report.json) and what a killed writer leaves (.tmp-*).
    """
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for stage in DATA_STAGES
        for path in (root / stage).rglob("*")
        if path.is_file() and path.name != "run_report.json" and not path.name.startswith(".tmp-")
    }


def differences(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Names of the objects that only one has, or that differ."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def copy_data(source: Path, target: Path) -> Path:
    """Copy the data stages of a run."""
    for stage in DATA_STAGES:
        shutil.copytree(source / stage, target / stage)
    return target


def require_whole(root: Path) -> None:
    """Assert that `verify` finds no fault in what is committed."""
    assert main(["verify", str(root)]) == 0
