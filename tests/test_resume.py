"""A sweep that was killed: what it left, and what the next one does."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dspark_sim.config import Scenario
from dspark_sim.study import sweep
from dspark_sim.study.run import Run

POLICIES, LOADS, SEEDS, REFINE = ("none", "fixed:3", "vllm"), (1, 9), range(4), 1
RUNS = len(POLICIES) * (len(LOADS) + REFINE) * len(SEEDS)
PATIENCE_S = 300
PROGRAM = f"""
import sys, time
import pandas
from dspark_sim.config import Scenario
from dspark_sim.study import sweep

def to_csv(table, *arguments, **options):
    if len(table) == {RUNS}:  # all is done but the table: wait to be killed
        time.sleep({PATIENCE_S})
    return written(table, *arguments, **options)

written, pandas.DataFrame.to_csv = pandas.DataFrame.to_csv, to_csv
scenario = Scenario.model_validate_json(sys.argv[1])
sweep(scenario, {POLICIES}, {LOADS}, seeds={SEEDS}, refine={REFINE}, jobs=2, out=sys.argv[2])
"""


def scenario():
    return Scenario.check(
        {
            "trace": "chat-1k",
            "profile": "llama3.1-8b-h100",
            "acceptance": "tiny-dspark-markov-t1",
            "requests": 40,
            "prefill": {"mode": "none"},
        }
    )


def finished(out):
    """Return when each run of a sweep was written, by name."""
    folders = (out / "runs").glob("[!.]*")
    return {path.name: (path / "summary.json").stat().st_mtime_ns for path in folders}


def digests(out):
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in out.rglob("*")
        if path.is_file()
    }


def kill_in_the_middle(out, luck):
    """Start a sweep on two processes and kill them all at a random moment."""
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, scenario().model_dump_json(), str(out)],
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    count, end = luck.integers(0, RUNS - 3), time.monotonic() + PATIENCE_S
    while len(finished(out)) < count and time.monotonic() < end:
        time.sleep(0.002)
    time.sleep(luck.uniform(0, 0.05))
    os.killpg(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    time.sleep(0.2)  # until the last of its workers is gone


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the files of a sweep that nobody killed."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    sweep(scenario(), POLICIES, LOADS, seeds=SEEDS, refine=REFINE, out=out)
    assert len(finished(out)) == RUNS
    return digests(out)


@pytest.mark.skipif(os.name != "posix", reason="kills a process group")
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_a_killed_sweep_does_only_what_is_missing(whole, tmp_path, monkeypatch, seed):
    out = tmp_path / "out"
    kill_in_the_middle(out, np.random.default_rng(seed))
    before, carry_out, done = finished(out), Run.carry_out, []
    assert not (out / "sweep.csv").exists()

    def counted(run, *pieces):
        done.append(run.folder.name)
        return carry_out(run, *pieces)

    monkeypatch.setattr(Run, "carry_out", counted)
    sweep(scenario(), POLICIES, LOADS, seeds=SEEDS, refine=REFINE, out=out)
    assert digests(out) == whole
    assert len(done) == len(set(done)) == RUNS - len(before)
    assert set(done).isdisjoint(before)
    assert before.items() <= finished(out).items()
    assert sorted(path.name for path in out.iterdir()) == ["runs", "sweep.csv"]
    assert len(list((out / "runs").iterdir())) == RUNS
