"""What both command lines share: TOML plus flags into one config, errors into one message."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import tyro
from rich.console import Console

from pipeline.config import PipelineConfig
from pipeline.errors import ClozelineError, ConfigError
from pipeline.storage import absolute_uri

T = TypeVar("T", bound=PipelineConfig)

_INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h
_INTERRUPTED = 130


def parse_config(cls: type[T], load: Callable[[str], T], argv: Sequence[str], prog: str) -> T:
    """Return the config of `--config FILE` with every other flag laid over it.

    Flags are the dataclass's fields ("--documents.partitions 8"), made by tyro.
    Raises ConfigError for a bad file; exits with 2 after a message for a bad flag.
    """
    # --config=FILE is --config FILE, as tyro takes every other flag.
    argv = [
        part
        for word in argv
        for part in (word.split("=", 1) if word.startswith("--config=") else [word])
    ]
    default = cls()
    if "--config" in argv:
        at = argv.index("--config")
        if at + 1 == len(argv):
            raise ConfigError("--config: names no file; write --config deploy/runs/demo.toml")
        default = load(argv[at + 1])
        del argv[at : at + 2]
    config = tyro.cli(
        cls,
        prog=f"{prog} [--config FILE.toml]",
        args=argv,
        default=default,
        use_underscores=True,
    )
    working = config.working_storage and absolute_uri(config.working_storage)
    return dataclasses.replace(config, root=absolute_uri(config.root), working_storage=working)


def run_command(command: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run a command and turn its failure into one message on standard error and an exit code.

    With --debug anywhere in `argv` the traceback is shown as well.
    """
    debug = "--debug" in argv
    try:
        return command([word for word in argv if word != "--debug"])
    except ClozelineError as error:
        if debug:
            raise
        return _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _complain("interrupted; run the same command again to go on", _INTERRUPTED)
    except BrokenPipeError:  # `| head` closed our output
        sys.stderr.close()
        return 1
    except Exception as error:
        if debug:
            raise
        return _complain(
            f"{type(error).__name__}: {error}\nThis was not foreseen; nothing committed is lost. "
            "Run again with --debug for the traceback",
            _INTERNAL_ERROR,
        )


def _complain(message: str, exit_code: int) -> int:
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        f"error: {message}", markup=False, style="red"
    )
    return exit_code
