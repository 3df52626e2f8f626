"""A progress bar on stderr for long work; silent where stderr is no terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def progress_bar(total: int, done: int = 0, shown: bool = True) -> Iterator[Callable[[], None]]:
    """Give a function that moves the bar by one run."""
    if not (shown and sys.stderr.isatty()):
        yield lambda: None
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
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=total, completed=done)
        yield lambda: bar.advance(task)


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
