"""The command line: one message and an exit code for every failure, a traceback on request."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.command_line import run_command
from pipeline.errors import ClozelineError, ConfigError, CorruptError, InputError, StorageError
from tests.pipeline.small_run import write_run

CHECKOUT = Path(__file__).parents[2]


def run_here(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of the command in this process."""
    try:
        code = run_command(main, argv)
    except SystemExit as stop:  # tyro's own refusals
        assert isinstance(stop.code, int)
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_process(*argv: str, cwd: Path = CHECKOUT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *argv],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def toml(tmp_path: Path, text: str) -> str:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("seed = = 1", ["not valid TOML", "line 1"]),
        ("[documents]\npartitons = 1", ["documents.partitons: unknown key"]),
        ("[masking]\nprobability = 1.5", ["masking.probability = 1.5: must be in (0, 1]"]),
        ('[masking]\nunit = "wrod"', ["masking.unit", "wrod", "whole_word"]),
    ],
)
@pytest.mark.parametrize("command", ["documents", "vocabulary", "instances", "run"])
def test_a_bad_config_ends_with_2_and_one_message(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    text: str,
    parts: list[str],
) -> None:
    path = toml(tmp_path, text)
    code, out, err = run_here([command, "--config", path], capsys)
    assert code == 2 and out == ""
    assert err.startswith(f"error: {'--config ' if 'TOML' in err else ''}{path}: ")
    assert all(part in err for part in parts)
    assert err.count("\n") == 1 and "Traceback" not in err


def test_a_config_that_does_not_exist_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_here(["run", "--config", "absent.toml"], capsys)
    assert code == 2
    assert err.startswith("error: --config absent.toml: cannot read it: No such file or directory")


def test_config_without_a_file_says_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_here(["run", "--config"], capsys)
    assert code == 2
    assert err == "error: --config: names no file; write --config deploy/runs/demo.toml\n"


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--documents.partitons", "1"], ["--documents.partitons"]),
        (["--documents.partitions", "-1"], ["documents.partitions = -1: must be in [0, 100000]"]),
        (["--documents.partitions", "many"], ["--documents.partitions", "'many'"]),
        (["--masking.mode", "statik"], ["--masking.mode", "'statik'", "'static'"]),
    ],
)
def test_a_bad_flag_ends_with_2_and_names_it(
    capsys: pytest.CaptureFixture[str], flags: list[str], parts: list[str]
) -> None:
    code, out, err = run_here(["documents", *flags], capsys)
    assert code == 2 and out == ""
    assert all(part in err for part in parts)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            'layout = "bert"\nvocab_size = 104',
            "vocab_size = 104: vocabulary.layout and user_tokens alone are 104",
        ),
        ('user_tokens = ["New York"]', "user_tokens: 'New York': text gives 'new york'"),
        ('start_from = "absent.txt"\nnew_entries = 1', "start_from = absent.txt: no such file"),
    ],
)
def test_a_vocabulary_no_corpus_fits_is_refused_before_the_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, part: str
) -> None:
    (tmp_path / "c.txt").write_text("A document.\n\nAnother.\n")
    source = f'[[documents.sources]]\nname = "c"\nformat = "text"\npath = "{tmp_path}/c.txt"'
    head = f'root = "{tmp_path}/run"\n{source}\n[vocabulary]\n'
    code, out, err = run_here(["run", "--config", toml(tmp_path, head + text)], capsys)
    assert (code, out) == (2, "")
    assert part in err and err.count("\n") == 1
    assert not (tmp_path / "run" / "documents").exists()


@pytest.mark.parametrize("argv", [["documint"], ["--config", "x"]])
def test_an_unknown_command_ends_with_2_and_the_usage(
    capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    code, out, err = run_here(argv, capsys)
    assert code == 2 and out == ""
    assert "usage: python -m pipeline COMMAND" in err
    assert f"error: {argv[0]}: no such command" in err


def test_no_command_ends_with_2_and_asking_for_help_with_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run_here([], capsys)
    assert (code, out) == (2, "") and err.startswith("usage: python -m pipeline")
    for word in ("-h", "--help", "help"):
        code, out, err = run_here([word], capsys)
        assert (code, err) == (0, "") and out.startswith("usage: python -m pipeline")


def test_every_command_of_the_usage_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    _, usage, _ = run_here(["help"], capsys)
    for command in ("documents", "vocabulary", "instances", "run", "inspect", "verify", "gc"):
        assert f"\n  {command} " in usage
        code, out, _ = run_here([command, "--help"], capsys)
        assert code == 0 and f"python -m pipeline {command}" in out


def test_help_describes_every_field_by_its_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_here(["run", "--help"], capsys)
    words = " ".join(out.replace("│", " ").split())
    assert "--documents.held_out_fraction FLOAT" in words
    assert "Share of the documents kept for evaluation, chosen by document hash." in words


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_nothing_at_a_uri_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, out, err = run_here([command, str(tmp_path)], capsys)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {tmp_path}: no finished stage here")
    assert err.count("\n") == 1


def test_gc_of_nothing_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_here(["gc", str(tmp_path), "--delete"], capsys)
    assert code == 1 and "no stage's folder here" in err


def test_verify_prints_every_fault_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_run(tmp_path)
    code, out, _ = run_here(["verify", str(root)], capsys)
    assert code == 0 and out.count(": whole\n") == 3
    (path,) = root.glob("documents/*/train-00000.arrow")
    path.write_bytes(path.read_bytes()[:-1])
    path.with_name("held_out-00000.arrow").unlink()
    code, out, _ = run_here(["verify", str(root)], capsys)
    assert code == 1
    faults = [line for line in out.splitlines() if line.startswith("fault: ")]
    # Both objects, and the documents that are missing with them.
    assert len(faults) == 3 and out.count(": whole\n") == 2
    assert any("train-00000.arrow" in line for line in faults)
    assert any("held_out-00000.arrow" in line for line in faults)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x = 1: must be 2"), 2),
        (InputError("f: no such file"), 1),
        (StorageError("o: no space"), 1),
        (CorruptError("o: changed"), 1),
        (ClozelineError("anything"), 1),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("division by zero"), 70),
        (OSError(28, "No space left on device"), 70),
    ],
)
def test_every_failure_is_one_message_with_its_exit_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    def command(argv: Sequence[str]) -> int:
        raise error

    assert run_command(command, []) == code
    err = capsys.readouterr().err
    assert err.startswith("error: ") and "Traceback" not in err
    if isinstance(error, ClozelineError):
        assert err == f"error: {error}\n"
    if code == 70:
        assert type(error).__name__ in err and "--debug" in err


@pytest.mark.parametrize("error", [InputError("f: gone"), ZeroDivisionError("by zero")])
def test_debug_raises_the_failure_itself(error: Exception) -> None:
    def command(argv: Sequence[str]) -> int:
        assert "--debug" not in argv
        raise error

    with pytest.raises(type(error)):
        run_command(command, ["verify", "--debug", "x"])


def test_a_message_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "documents.sources[web].path = [bold]/x: " + "long " * 60

    def command(argv: Sequence[str]) -> int:
        raise InputError(text)

    run_command(command, [])
    assert capsys.readouterr().err == f"error: {text}\n"


def test_the_exit_code_and_the_message_reach_the_shell(tmp_path: Path) -> None:
    bad = run_process("documents", "--config", toml(tmp_path, "sed = 1"))
    assert bad.returncode == 2 and bad.stdout == ""
    assert bad.stderr.startswith("error: ") and "sed: unknown key" in bad.stderr
    nothing = run_process("inspect", "nothing-here", cwd=tmp_path)
    assert nothing.returncode == 1 and "Traceback" not in nothing.stderr
    debug = run_process("verify", "nothing-here", "--debug", cwd=tmp_path)
    assert debug.returncode == 1
    assert "Traceback" in debug.stderr and "InputError" in debug.stderr


def test_output_that_nobody_reads_ends_quietly(tmp_path: Path) -> None:
    root = write_run(tmp_path)
    inspect = f"{sys.executable} -m pipeline inspect {root} --rows 40"
    command = f"{inspect} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=CHECKOUT, capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)  # 0 where the pipe took everything before it was closed
