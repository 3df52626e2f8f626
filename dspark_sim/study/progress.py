"""A progress bar on stderr for long work; silent where stderr is no terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ESTIMATE_S = 600
"""Seconds back over which the speed is taken."""


@contextmanager
def progress_bar(total: int, shown: bool = True) -> Iterator[Callable[[int, bool], None]]:
    """Give a function that moves the bar by some runs, and says whether they were there already.

    Runs that were there take no time and are left out of the estimate of what remains.
    """
    if not (shown and sys.stderr.isatty()):
        yield lambda runs, there: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, speed_estimate_period=ESTIMATE_S
    ) as bar:
        task = bar.add_task("runs", total=total)

        def move(runs: int, there: bool) -> None:
            if not there:
                bar.advance(task, runs)
            elif runs:
                bar.reset(task, completed=int(bar.tasks[0].completed) + runs)

        yield move


@contextmanager
def stage_bar() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Give a function that shows a row of progress: its `stage`, and `step` of `steps`."""
    if not sys.stderr.isatty():
        yield lambda row: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def show(row: dict[str, Any]) -> None:
            stage = row["stage"]
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage)
            bar.update(tasks[stage], total=row.get("steps"), completed=row.get("step", 0))

        yield show
