"""The bar on stderr while a sweep runs."""

import io
import re
import sys

import pytest

from dspark_sim.study.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch):
    """Let stderr be a terminal from here on; return what is written to it."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_the_bar_counts_runs_that_were_there_and_runs_that_ended(monkeypatch):
    stream = terminal(monkeypatch)
    with progress_bar(5) as move:
        move(2, True)
        move(1, False)
        move(0, True)
        move(1, False)
    shown = re.findall(r"\d/5", stream.getvalue())
    assert shown[-1] == "4/5"


def test_runs_that_were_there_do_not_make_the_rest_look_quick(monkeypatch):
    stream, now = terminal(monkeypatch), [0.0]
    monkeypatch.setattr("rich.console.monotonic", lambda: now[0])
    with progress_bar(104) as move:
        move(100, True)
        for _ in range(3):
            now[0] += 100.0
            move(1, False)
    assert re.findall(r"\d:\d\d:\d\d", stream.getvalue())[-1] == "0:01:40"


@pytest.mark.parametrize("shown", [True, False])
def test_without_a_terminal_nothing_is_written(monkeypatch, shown):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(2, shown=shown) as move:
        move(1, False)
    assert stream.getvalue() == ""
