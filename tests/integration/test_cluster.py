"""Jobs on a running cluster: by address, by `auto`, and by `ray job submit`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Head
from tests.integration.product import RAY_FOLDER, REPOSITORY, run, started, wait_until
from tests.integration.run_folder import contents, differences, require_whole

pytestmark = pytest.mark.ray

_MOST_PACKAGE_BYTES = 100 << 20  # of a working directory that Ray takes


@pytest.fixture(scope="module")
def submitted(config: str, head: Head, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of a run of the data half that was submitted as a job."""
    root = tmp_path_factory.mktemp("submitted")
    submit = ("ray", "job", "submit", "--address", head.dashboard, "--working-dir", ".", "--")
    command = ("python", "-m", "pipeline", "run", "--config", config, "--root", str(root))

    def succeeds() -> bool:
        with started(*submit, *command, **head.join) as job:
            ended = job.wait()
        if "No available agent" in ended.stderr:  # the cluster is up, its job agent not yet
            return False
        return bool(ended.require_success())

    wait_until(succeeds, "a job agent")
    return root


def test_a_submitted_job_does_the_whole_run(undisturbed: Path, submitted: Path) -> None:
    assert differences(contents(undisturbed), contents(submitted)) == []
    require_whole(submitted)


@pytest.mark.usefixtures("submitted")
def test_the_submitted_working_directory_holds_the_code_and_nothing_heavy() -> None:
    packages = RAY_FOLDER.glob("ray/session_2*/runtime_resources/working_dir_files/*")
    (package,) = (path for path in packages if path.is_dir())
    assert (package / "pipeline/__main__.py").is_file()
    assert (package / "trainer/__main__.py").is_file()
    assert (package / "deploy/runs/demo.toml").is_file()
    for heavy in (".venv", ".git", "runs", ".hypothesis", ".mypy_cache"):
        assert not (package / heavy).exists(), heavy
    size = sum(path.stat().st_size for path in package.rglob("*") if path.is_file())
    assert size < _MOST_PACKAGE_BYTES // 10


def test_auto_joins_the_running_cluster(undisturbed: Path, config: str, head: Head) -> None:
    arguments = ("run", "--config", config, "--root", str(undisturbed), "--ray_address", "auto")
    login = {name: value for name, value in head.join.items() if name != "RAY_ADDRESS"}
    ended = run("pipeline", *arguments, **login).require_success()
    assert ended.stdout.count("done already") == 3


def test_more_workers_than_the_cluster_has_are_refused(
    undisturbed: Path, config: str, head: Head
) -> None:
    ended = run(
        "trainer",
        *("pretrain", "--config", config, "--root", str(undisturbed)),
        *("--ray_address", head.address, "--training.workers", "4"),
        **head.join,
    )
    assert ended.exit_code == 1
    assert "training.workers = 4: want 4 CPU, the cluster has 2" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_address_without_a_cluster_is_refused(config: str) -> None:
    ended = run("pipeline", "run", "--config", config, "--ray_address", "127.0.0.1:1")
    assert ended.exit_code == 1
    assert "ray_address = 127.0.0.1:1: cannot join" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (REPOSITORY / "runs" / "default").exists()
