"""Running the program as a user does, but within this process."""

import contextlib
import io
import json
import sys
from unittest import mock

import pytest

from dspark_sim.cli import main

SMALL = ("--profile", "llama3.1-8b-h100", "--trace", "synth:fixed,in=64,out=24", "--requests", "40")


def call(*arguments):
    """Run `dspark-sim` with these arguments; return its exit code, stdout and stderr."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["dspark-sim", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code or 0
    return code, out.getvalue(), err.getvalue()


def strict(text):
    """Read JSON in which nothing is NaN or infinite."""
    return json.loads(text, parse_constant=pytest.fail)


def tree(folder):
    """Return every file of a folder with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
