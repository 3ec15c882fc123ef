"""The stats command: the data card of the instances at a URI, or a plain refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.command_line import run_command
from pipeline.commit import Generation
from pipeline.data_card import data_card

COUNTS = {
    "documents": 10,
    "documents_used": 9,
    "in_order": 60,
    "instances": 100,
    "length_histogram": [0] * 15 + [100],
    "swapped": 40,
    "tokens": 12_000,
    "tokens_read": 12_500,
    "tokens_truncated": 500,
    "tokens_unpaired": 300,
    "tokens_used": 11_700,
    "unknown_tokens": 25,
}


def write_set(root: Path) -> None:
    empty: dict[str, Any] = {"length_histogram": [0] * 16}
    card = data_card(COUNTS, objective="sop", max_seq_length=128, duplicate_factor=1)
    size = {"bytes": 13_000}
    one = {
        "counts": {"train": COUNTS, "held_out": empty},
        "data_card": {"train": card, "held_out": {}},
        "max_seq_length": 128,
        "shards": [{"split": "train", "rows": 100, "object": size, "lengths": {"bytes": 200}}],
    }
    manifest = {"masking": {"mode": "dynamic"}, "objective": "sop", "sets": [one]}
    Generation(str(root), "instances", "1" * 20).commit(manifest, {})


def test_stats_prints_amounts_shares_and_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    write_set(tmp_path)
    assert main(["stats", str(tmp_path)]) == 0
    lines = [
        " ".join(line.replace("│", " ").split()) for line in capsys.readouterr().out.split("\n")
    ]
    for line in (
        "instances 100 0",
        "tokens an instance 120.0 -",
        "bytes an instance on disk 132.0 -",
        "tokens of the max_seq_length places 93.750% -",
        "tokens read that are in instances 93.600% -",
        "tokens read that were cut from pairs 4.000% -",
        "tokens read that found no pair 2.400% -",
        "[UNK] among the documents' tokens 0.200% -",
        "sentence_order_label 1: A follows B 40.000% -",
        f"120 to 128 100 {'█' * 24}",
    ):
        assert line in lines
    assert not any("masked" in line for line in lines)  # the loader masks this set


def test_stats_without_instances_says_what_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Generation(str(tmp_path), "documents", "d" * 20).commit({"counts": {}}, {})
    assert run_command(main, ["stats", str(tmp_path)]) == 1
    assert "no instances here; run `python -m pipeline instances` first" in capsys.readouterr().err
    assert run_command(main, ["stats", str(tmp_path / "nowhere")]) == 1
