"""The look at a config's sources from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def preview(config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline.corpus", str(config)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_preview_shows_first_documents_and_counts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\nthree\n\nfour\n")
    (tmp_path / "b.tmp").write_text("not yet")
    config = tmp_path / "run.toml"
    config.write_text(f'[[documents.sources]]\nname = "s"\npath = "{tmp_path}/[ab].t*"\n')
    done = preview(config)
    assert done.returncode == 0, done.stderr
    *shown, counts = done.stdout.splitlines()
    assert shown == ['s/a.txt#0: "one"', 's/a.txt#5: "two"', 's/a.txt#10: "three"']
    found = json.loads(counts)["s"]
    assert (found["files"], found["splits"], found["characters"]) == (1, 1, 16)
    assert found["counts"] == {"documents": 4, "temporary_left_out": 1}


def test_a_preview_of_what_cannot_be_read_fails_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9\n")
    config = tmp_path / "run.toml"
    config.write_text(f'[[documents.sources]]\nname = "s"\npath = "{tmp_path}/a.txt"\n')
    done = preview(config)
    assert done.returncode == 1
    assert f"error: {tmp_path}/a.txt: byte offset 3: not UTF-8" in done.stderr
