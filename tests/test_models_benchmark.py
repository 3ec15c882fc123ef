"""What the benchmark of the models refuses, and what it keeps when a case fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks import _models_cuda, models


def test_a_case_that_fails_has_its_error_and_costs_no_other_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench" / "models.json"

    def fails() -> dict[str, Any]:
        assert [one["case"] for one in json.loads(file.read_text())] == ["first"]
        raise torch.OutOfMemoryError("CUDA out of memory.\n  Tried to allocate 9 GiB")

    done = {"first": lambda: {"mfu": 0.5}, "second": fails, "third": lambda: {"mfu": None}}
    assert models.run(done, file) == 1
    assert json.loads(file.read_text()) == [
        {"case": "first", "mfu": 0.5},
        {
            "case": "second",
            "error": "OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB",
        },
        {"case": "third", "mfu": None},
    ]
    assert capsys.readouterr().out.split("\n")[1].startswith("second, OutOfMemoryError: CUDA")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the cases are others on a CUDA device")
def test_a_case_that_is_none_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        models.main(["small-fp23"])
    assert ended.value.code == 2
    assert "small-fp23: no such case on this device; must be of small-fp32, " in (
        capsys.readouterr().err
    )


def test_what_means_nothing_on_a_cuda_device_is_refused_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for arguments, message in (
        (["--malloc-defaults"], "--malloc-defaults: has no meaning on a CUDA device"),
        (["small-fp32"], "small-fp32: no such case on this device; must be of base-256x128-packed"),
        (["--rounds", "0"], "--rounds 0: must be at least 1"),
    ):
        with pytest.raises(SystemExit):
            models.main(arguments)
        assert message in capsys.readouterr().err


def test_both_sizes_lengths_and_fillings_are_measured_plain_and_compiled() -> None:
    found = _models_cuda.cases()
    ours = [name for name, case in found.items() if case.kind != "transformers"]
    assert len(ours) == 2 * 2 * 2 * 2
    goals = {name for name, case in found.items() if case.mfu_goal == 0.55}
    assert goals == {f"large-64x512-packed-bf16-{kind}" for kind in ("plain", "compiled")}
