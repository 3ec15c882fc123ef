"""A root in a bucket of a real S3 server holds the same bytes as one on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.storage import open_storage
from tests.integration.product import run
from tests.integration.run_folder import contents
from tests.s3_server import BUCKET

pytestmark = [pytest.mark.ray, pytest.mark.s3]


def test_the_data_half_writes_the_same_objects_to_a_bucket(
    undisturbed: Path, config: str, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"s3://{BUCKET}/run"
    run("pipeline", "run", "--config", config, "--root", root, **s3).require_success()
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    store = open_storage(root)
    stored = dict(store.list(""))
    for name, data in contents(undisturbed).items():
        assert store.read(name) == data, name
        del stored[name]
    assert all(name.endswith("run_report.json") for name in stored), stored
    assert run("pipeline", "verify", root, **s3).exit_code == 0
