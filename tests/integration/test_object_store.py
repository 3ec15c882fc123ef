"""A root in a bucket of a real S3 server, before which requests fail and workers are killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.storage import Storage, open_storage
from tests.fault_proxy import Fault, fault_proxy
from tests.integration.product import RAY_FOLDER, module, run, started, wait_until
from tests.integration.run_folder import DATA_STAGES, contents
from tests.s3_server import BUCKET, READER

# boto3's own sockets are left to the collector.
pytestmark = [
    pytest.mark.ray,
    pytest.mark.s3,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ROOT = f"s3://{BUCKET}/run"
# A fifth of all writes is told to slow down, for a while, and so on.
FAULTS = (
    Fault(kind="hang", method="PUT", contains="train-"),
    Fault(kind="slow_down", method="PUT", every=5, times=6),
    Fault(kind="lost_answer", method="PUT", every=6, times=3),
    Fault(kind="reset", method="PUT", every=7, times=3),
    Fault(kind="internal_error", method="HEAD", every=9, times=3),
    Fault(kind="cut_body", method="GET", every=4, times=6),
    Fault(kind="unavailable", method="GET", every=5, times=3),
)


@pytest.fixture
def store(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Storage:
    """The root, seen without the proxy."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    return open_storage(ROOT)


def test_two_jobs_that_do_the_same_through_faults_leave_what_one_leaves_undisturbed(
    undisturbed: Path, config: str, s3: dict[str, str], store: Storage
) -> None:
    command = module(
        *("pipeline", "run", "--config", config, "--root", ROOT, "--cluster.workers", "1")
    )
    with fault_proxy(s3["AWS_ENDPOINT_URL_S3"]) as proxy:
        proxy.script(*FAULTS)
        settings = {**s3, "AWS_ENDPOINT_URL_S3": proxy.url}
        with started(*command, **settings) as one, started(*command, **settings) as other:
            wait_until(lambda: proxy.injected["hang"], "a worker is in the middle of an upload")
            for job in (one, other):  # it is a worker of one of them
                job.kill_workers("ray::Map")
            ends = [job.wait().require_success() for job in (one, other)]
        assert proxy.injected == {fault.kind: fault.times for fault in FAULTS}
    stored = dict(store.list(""))
    for name, data in contents(undisturbed).items():
        assert store.read(name) == data, name
        del stored[name]
    assert stored.pop("write_check")
    assert sorted(stored) == sorted(name for name in stored if name.endswith("/run_report.json"))
    reports = [json.loads(store.read(name)) for name in stored]
    assert len(reports) == len(DATA_STAGES)
    assert sum(report["storage_retries"] for report in reports) > 0
    assert list(store.leftovers("")) == []
    assert run("pipeline", "verify", ROOT, **s3).exit_code == 0

    # Nobody wrote the secret down: in an object, on a terminal, in a log of Ray's.
    secret = s3["AWS_SECRET_ACCESS_KEY"].encode()
    assert not any(secret in store.read(name) for name, _ in store.list(""))
    assert not any(secret in (ended.stdout + ended.stderr).encode() for ended in ends)
    logs = [
        path
        for path in RAY_FOLDER.rglob("*")
        # Copies of the sources, whose guide names the test server's own secret.
        if "working_dir_files" not in path.parts and path.is_file() and not path.is_symlink()
    ]
    assert len(logs) > 10
    assert not [path for path in logs if secret in path.read_bytes()]


def test_a_key_that_may_only_read_is_refused_before_the_work(
    config: str, s3: dict[str, str]
) -> None:
    ended = run("pipeline", "run", "--config", config, "--root", ROOT, **{**s3, **READER})
    assert ended.exit_code == 1
    assert (
        f"{ROOT}/write_check: cannot write: AccessDenied after 3 attempts (request id "
        in ended.stderr
    )
    assert "give these credentials the right to write there" in ended.stderr
    assert READER["AWS_SECRET_ACCESS_KEY"] not in ended.stderr
    assert "Traceback" not in ended.stderr
