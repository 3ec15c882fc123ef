"""The real product in processes of its own: start it, watch what it leaves, kill parts of it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).parents[2]
# The tests' own folder for Ray, so that they never meet another Ray of this machine, nor what is
# left of one; short, because the path of a Unix socket has at most 107 bytes.
RAY_FOLDER = Path("/tmp", f"cz-{secrets.token_hex(4)}")
DEADLINE_SECONDS = 1500.0
_POLL_SECONDS = 0.02


def environment(**extra: str) -> dict[str, str]:
    """This process's environment, without a cluster to join unless `extra` names one."""
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ours = {"RAY_TMPDIR": str(RAY_FOLDER), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "PATH": path}
    return {**inherited, **ours, **extra}


@dataclass(frozen=True)
class Ended:
    """A command that ended, and what it said."""

    arguments: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str

    def require_success(self) -> Ended:
        assert self.exit_code == 0, self
        return self

    def __str__(self) -> str:
        return (
            f"{' '.join(self.arguments)}: exit code {self.exit_code}\n{self.stdout}\n{self.stderr}"
        )


class Command:
    """A running command; it writes to files, so that it never waits for a reader."""

    def __init__(self, arguments: tuple[str, ...], folder: Path, extra: dict[str, str]) -> None:
        self.arguments = arguments
        self.orphans: list[psutil.Process] = []
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                arguments,
                cwd=REPOSITORY,
                env=environment(**extra),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def wait(self) -> Ended:
        """Wait for the end."""
        code = self.process.wait(DEADLINE_SECONDS)
        return Ended(self.arguments, code, self._out.read_text(), self._err.read_text())

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something to become true while the command still runs."""
        wait_until(lambda: condition() or self.process.poll() is not None, what)
        assert self.process.poll() is None, f"ended before {what}: {self.wait()}"

    def kill(self) -> None:
        """`kill -9` the driver, and only it."""
        driver = psutil.Process(self.process.pid)
        driver.suspend()  # listing takes a while, in which it must not go on
        self.orphans = driver.children(recursive=True)
        driver.kill()
        assert self.process.wait(DEADLINE_SECONDS) == -signal.SIGKILL, "it had ended by itself"

    def said(self) -> str:
        """What it wrote on its standard output so far."""
        return self._out.read_text()

    def workers(self, title: str, count: int = 1) -> list[psutil.Process]:
        """Wait for so many of its Ray workers to be in the middle of the task or actor `title`."""
        found: list[psutil.Process] = []

        def look() -> bool:
            found[:] = processes(self.process.pid, title)
            return len(found) >= count

        self.until(look, f"{count} workers run {title}")
        return found

    def stop_worker(
        self, worker: psutil.Process, condition: Callable[[], object], what: str
    ) -> None:
        """Stop a training worker as soon as something is true.

        The others wait for it, so that the training cannot end before it goes on or is killed.
        """
        self.until(condition, what)
        worker.suspend()

    def kill_workers(self, title: str) -> None:
        """`kill -9` its Ray workers that are in the middle of the task or actor `title`."""
        for one in self.workers(title):
            one.kill()


def processes(parent: int, title: str) -> Iterator[psutil.Process]:
    """Yield the descendants of a process whose title begins with `title`."""
    try:
        descendants = psutil.Process(parent).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    found: set[int] = set()
    for process in descendants:
        try:
            words, parent_of_it = process.cmdline(), process.ppid()
        except psutil.Error:  # it ended between listing and reading
            continue
        # A worker that starts another program is two of its title for a moment.
        if words and words[0].startswith(title) and parent_of_it not in found:
            found.add(process.pid)
            yield process


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Poll until something is true; an AssertionError after the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"no sign of: {what}"
        time.sleep(_POLL_SECONDS)


@contextmanager
def started(*arguments: str, **extra: str) -> Iterator[Command]:
    """Start a command from the repository's root; `extra` adds to its environment."""
    with tempfile.TemporaryDirectory() as folder:
        command = Command(arguments, Path(folder), extra)
        try:
            yield command
        finally:
            if command.process.poll() is None:
                command.kill()
                # By number, never by name; a cluster's own way to end takes half a minute.
                for one in command.orphans:
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
            # Ray's processes notice the end of their parent within seconds; none outlives a test.
            wait_until(lambda: not any(map(_runs, command.orphans)), "the orphans' end")


def module(name: str, *arguments: str) -> tuple[str, ...]:
    """`python -m NAME ARGUMENTS`."""
    return (sys.executable, "-m", name, *arguments)


def run(name: str, *arguments: str, **extra: str) -> Ended:
    """Run `python -m NAME ARGUMENTS` to its end; the exit code is the caller's to judge."""
    with started(*module(name, *arguments), **extra) as command:
        return command.wait()
