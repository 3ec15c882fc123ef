"""Progress bars with rates and time left on a terminal, silence elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

Advance = Callable[[float], None]


class _RateColumn(ProgressColumn):
    """Units a second, over the last seconds."""

    def render(self, task: Task) -> Text:
        """Return the rate as text."""
        return Text(f"{task.finished_speed or task.speed or 0.0:,.1f}/s", style="progress.data")


@contextmanager
def progress(description: str, total: float, unit: Literal["bytes", "units"]) -> Iterator[Advance]:
    """Show a bar on standard error while the block runs; yields the function that advances it."""
    console = Console(stderr=True)
    columns: tuple[ProgressColumn, ...] = (TextColumn("{task.description}"), BarColumn())
    if unit == "bytes":
        columns += (DownloadColumn(), TransferSpeedColumn())
    else:
        columns += (MofNCompleteColumn(), _RateColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(description, total=total)

        def advance(amount: float) -> None:
            bar.update(task, advance=amount)

        yield advance
