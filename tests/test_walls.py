"""The three walls: ray only in the shells, no torch in pipeline, no pipeline.jobs in trainer."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]


def modules_of(package: str) -> list[str]:
    """Every module of a package, by its files: nothing is imported to find them."""
    found = [package]
    for module in pkgutil.iter_modules([str(CHECKOUT / package.replace(".", "/"))]):
        name = f"{package}.{module.name}"
        found += modules_of(name) if module.ispkg else [name]
    return found


def imported_by(modules: list[str]) -> set[str]:
    """Import modules in a fresh interpreter; returns the names in its sys.modules."""
    code = (
        "import importlib, json, sys\n"
        "for name in json.loads(sys.argv[1]): importlib.import_module(name)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(modules)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def below(package: str, names: set[str]) -> list[str]:
    return sorted(name for name in names if name == package or name.startswith(f"{package}."))


def within(package: str, shell: str) -> tuple[list[str], list[str]]:
    """(modules of the package outside its shell, modules of the shell)."""
    modules = modules_of(package)
    shells = below(shell, set(modules))
    assert len(shells) > 2
    return [name for name in modules if name not in shells], shells


def test_the_core_of_pipeline_needs_no_ray_no_torch_and_no_trainer() -> None:
    core, shells = within("pipeline", "pipeline.jobs")
    assert {"pipeline.__main__", "pipeline.documents", "pipeline.vocabulary.training"} <= set(core)
    loaded = imported_by(core)
    assert set(core) <= loaded
    for package in ("ray", "torch", "transformers", "trainer"):
        assert below(package, loaded) == []
    assert loaded.isdisjoint(shells)


def test_the_jobs_need_no_torch_and_no_trainer() -> None:
    _, shells = within("pipeline", "pipeline.jobs")
    loaded = imported_by(shells)
    assert "ray" in loaded
    for package in ("torch", "trainer"):
        assert below(package, loaded) == []


def test_the_core_of_trainer_needs_no_ray_and_no_jobs() -> None:
    core, shells = within("trainer", "trainer.cluster")
    assert {"trainer.__main__", "trainer.step", "trainer.models.encoder"} <= set(core)
    loaded = imported_by(core)
    assert "torch" in loaded
    for package in ("ray", "pipeline.jobs"):
        assert below(package, loaded) == []
    assert loaded.isdisjoint(shells)


def test_the_shells_of_trainer_need_no_jobs() -> None:
    _, shells = within("trainer", "trainer.cluster")
    loaded = imported_by(shells)
    assert "ray" in loaded
    assert below("pipeline.jobs", loaded) == []


def lint(file: str, text: str) -> str:
    """What ruff says of a file with this text at that place."""
    ruff = Path(sys.executable).with_name("ruff")
    done = subprocess.run(
        [str(ruff), "check", "--output-format", "concise", "--stdin-filename", file, "-"],
        cwd=CHECKOUT,
        input=f'"""A module."""\n\n{text}  # noqa: F401\n',
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


IMPORTS = {
    "ray": ["import ray", "import ray.data", "from ray import train"],
    "torch": ["import torch", "from torch import nn", "import torch.nn.functional"],
    "trainer": ["import trainer", "from trainer import step", "from trainer.step import Step"],
    "pipeline.jobs": [
        "import pipeline.jobs",
        "from pipeline import jobs",
        "from pipeline.jobs import documents",
        "from pipeline.jobs.cluster import run_units",
    ],
}
BANNED = {
    "pipeline/x.py": {"ray", "torch", "trainer", "pipeline.jobs"},
    "pipeline/vocabulary/x.py": {"ray", "torch", "trainer", "pipeline.jobs"},
    "pipeline/__main__.py": {"ray", "torch", "trainer", "pipeline.jobs"},
    "pipeline/jobs/x.py": {"torch", "trainer"},
    "trainer/x.py": {"ray", "pipeline.jobs"},
    "trainer/models/x.py": {"ray", "pipeline.jobs"},
    "trainer/__main__.py": {"ray", "pipeline.jobs"},
    "trainer/cluster/x.py": {"pipeline.jobs"},
}


@pytest.mark.parametrize("file", BANNED)
def test_the_linter_refuses_imports_across_a_wall_and_no_others(file: str) -> None:
    for package, lines in IMPORTS.items():
        for line in lines:
            refused = f"TID251 `{package}" in lint(file, line)
            assert refused == (package in BANNED[file]), line


def test_an_import_inside_a_function_is_refused_too() -> None:
    text = 'def f() -> None:\n    """Do."""\n    import ray'
    assert "TID251 `ray` is banned: only pipeline/jobs" in lint("trainer/x.py", text)


def test_the_walls_have_one_gate() -> None:
    """Only pipeline's command line may step over a wall: it starts its own jobs."""
    exempt = [
        f"{path.relative_to(CHECKOUT)}: {line.strip()}"
        for package in ("pipeline", "trainer")
        for path in sorted((CHECKOUT / package).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").split("\n")
        if "TID251" in line
    ]
    assert exempt
    assert all(one.startswith("pipeline/__main__.py: from pipeline.jobs") for one in exempt)


# What a device does that is no plain CPU: there numba draws no bits of dropout.
_STEP_WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None  # as where it is not installed: importing it fails
import torch
from tests.benchmarks import models
from tests.benchmarks._model_steps import make_batch, model_flops, our_step, padded
from trainer.models import dropout
dropout.on_plain_cpu = lambda values: False
batch = make_batch(3, 64, full=False)
our_step("small", batch, "bf16", torch.device("cpu"), attention_dropout=0.0)()
assert padded(batch, 64)["labels"].shape == (3, 64) and model_flops("small", batch) > 0
print([name for name in ("ray", "transformers", "safetensors") if name in sys.modules])
"""


def test_models_and_their_benchmark_need_torch_alone() -> None:
    modules = [*modules_of("trainer.models"), "trainer.losses", "trainer.optim"]
    loaded = imported_by([*modules, "tests.benchmarks.models"])
    assert set(modules) <= loaded and below("torch", loaded)
    for package in ("ray", "pydantic", "numba", "pyarrow", "transformers", "tokenizers", "rich"):
        assert below(package, loaded) == []
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _STEP_WITHOUT_NUMPY],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
