"""How many CPUs a local Ray is given: those of the container, not those of its machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline import ray_session

ALLOWED = 4


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, ALLOWED),
        ({"cpu.max": "max 100000\n"}, ALLOWED),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, ALLOWED),
        ({"quota": "-1\n", "period": "100000\n"}, ALLOWED),
        ({"quota": "300000\n", "period": "100000\n"}, 3),
    ],
)
def test_a_local_ray_has_the_cpus_of_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cpus: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(ALLOWED)))
    paths = [
        [str(tmp_path / name) for name in names] for names in (("cpu.max",), ("quota", "period"))
    ]
    monkeypatch.setattr(ray_session, "_QUOTAS", paths)
    assert ray_session._usable_cpus() == cpus
