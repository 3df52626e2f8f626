"""Sweeps on a Dask cluster: the same bytes, whatever dies, and what is told."""

import hashlib
import os
import pickle
import sys
import threading
import time

import pandas as pd
import pytest
from command_line import SMALL, call

from dspark_sim.config import Scenario
from dspark_sim.core import RunError, UserError
from dspark_sim.study import cluster as room
from dspark_sim.study import sweep
from dspark_sim.study.inputs import SharedInputs
from dspark_sim.study.run import Run

distributed = pytest.importorskip("distributed", reason="needs the extra cluster")
from dask_cluster import cluster, kill  # noqa: E402

POLICIES = ("none", "fixed:3", "vllm")
SEEDS = range(4)


def scenario(**changes):
    keys = {
        "trace": "synth:fixed,in=64,out=24",
        "profile": "llama3.1-8b-h100",
        "acceptance": "tiny-dspark-markov-t1",
        "requests": 40,
        "prefill": {"mode": "none"},
    }
    return Scenario.check(keys | changes)


def digests(out):
    files = [out / "sweep.csv", *(out / "runs").glob("*/*")]
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def runs(out):
    return {path.name for path in (out / "runs").glob("[!.]*")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a sweep that ran through in this process."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    sweep(scenario(), POLICIES, (1, 8), seeds=SEEDS, refine=1, out=out)
    return out


@pytest.fixture(scope="module")
def inside():
    """Return a cluster within this process: a scheduler and two workers."""
    with started(2) as here:
        yield here


def started(workers):
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    )


def on(address, out, **changes):
    arguments = {"seeds": SEEDS, "refine": 1} | changes
    return sweep(
        scenario(), POLICIES, (1, 8), backend="dask", scheduler=address, out=out, **arguments
    )


def test_a_cluster_writes_the_same_bytes(finished, inside, tmp_path):
    on(inside.scheduler_address, tmp_path / "out")
    assert digests(tmp_path / "out") == digests(finished)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["runs", "sweep.csv"]


def test_without_a_folder_only_summaries_come_back(finished, inside):
    table = on(inside.scheduler_address, None)
    there = pd.read_csv(finished / "sweep.csv")
    pd.testing.assert_frame_equal(
        table.drop(columns="run"), there.drop(columns="run"), check_dtype=False
    )


def test_the_command_prints_what_it_prints_without_a_cluster(inside):
    options = ("sweep", *SMALL, "--policy", "none", "--concurrency", "1,4", "--seeds", 2, "--json")
    here = call(*options, "--jobs", 1)
    assert here[::2] == (0, "")
    assert here == call(*options, "--backend", "dask", "--scheduler", inside.scheduler_address)


def test_a_mistake_found_by_a_worker_is_the_users(inside, tmp_path):
    tight = scenario(profile_set={"kv_tokens": 64})
    with pytest.raises(UserError, match="can never fit"):
        sweep(
            tight, ["vllm"], [1], backend="dask", scheduler=inside.scheduler_address,
            out=tmp_path / "out",
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def impatient(monkeypatch):
    """Wait for nobody."""
    monkeypatch.setattr(room, "CONNECT_S", 0.5)
    monkeypatch.setattr(room, "WORKER_S", 0.5)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("tcp://127.0.0.1:1", r"no Dask scheduler answers at 'tcp://127.0.0.1:1' \(Timed|nothing"),
        ("nowhere", r"no Dask scheduler answers at 'nowhere' \(missing port number"),
        ("http://127.0.0.1:1", r"no Dask scheduler answers at .* \(unknown address scheme"),
    ],
)
def test_an_address_without_a_scheduler_is_told(impatient, tmp_path, address, words):
    with pytest.raises(UserError, match=words) as caught:
        on(address, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_address_of_a_worker_is_told(impatient, inside):
    worker = next(iter(inside.scheduler_info["workers"]))
    with pytest.raises(UserError, match="is the address of a Dask worker, not of a scheduler"):
        on(worker, None)


def test_a_cluster_without_workers_is_told(impatient):
    with (
        started(0) as empty,
        pytest.raises(RunError, match=r"no worker joined the scheduler at inproc.* within 0\.5 s"),
    ):
        on(empty.scheduler_address, None)


def test_a_missing_extra_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match=r"pip install 'dspark-sim\[cluster\]'"):
        on("tcp://127.0.0.1:1", None)


def test_a_worker_of_another_version_is_refused():
    run = scenario(policy="vllm", concurrency=1)
    pieces = [pickle.dumps(make()) for make in SharedInputs(run, ["vllm"]).pieces(run).values()]
    versions = room._installed()
    assert room._remotely(Run(0, run, None), versions, *pieces)["completed"] == 40
    with pytest.raises(UserError, match=r"a worker has numpy .*, this computer 0\.1: the results"):
        room._remotely(Run(0, run, None), versions | {"numpy": "0.1"}, *pieces)


def when(out, count, action):
    """Do something as soon as so many runs are there."""

    def watch():
        while len(runs(out)) < count:
            time.sleep(0.01)
        action()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 5, 9])
def test_a_sweep_ends_though_a_worker_is_killed(finished, tmp_path, count):
    out = tmp_path / "out"
    with cluster(tmp_path, workers=2) as running:
        watcher = when(out, count, lambda: kill(running.workers[0]))
        on(running.address, out)
        watcher.join()
        assert running.workers[0].poll() is not None
    assert digests(out) == digests(finished)


@pytest.mark.slow
def test_a_lost_scheduler_is_told_and_the_rest_runs_here(finished, tmp_path):
    out = tmp_path / "out"
    with cluster(tmp_path, workers=2) as running:
        when(out, 4, lambda: kill(running.scheduler))
        with pytest.raises(RunError, match=r"the scheduler at tcp://.* was lost; what was"):
            on(running.address, out)
    kept = {name: (out / "runs" / name).stat().st_mtime_ns for name in runs(out)}
    assert 4 <= len(kept) < len(runs(finished))
    sweep(scenario(), POLICIES, (1, 8), seeds=SEEDS, refine=1, out=out)
    assert digests(out) == digests(finished)
    assert kept == {name: (out / "runs" / name).stat().st_mtime_ns for name in kept}


@pytest.mark.slow
def test_a_run_that_ends_its_workers_is_told(tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text("import os\ndef policy(view): os.kill(os.getpid(), 9)\n")
    monkeypatch.syspath_prepend(tmp_path)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", paths)
    with (
        cluster(tmp_path, workers=4) as running,
        pytest.raises(RunError, match="policy 'deadly:policy' at 1 ended several workers"),
    ):
        sweep(scenario(), ["deadly:policy"], [1], backend="dask", scheduler=running.address)


@pytest.mark.slow
def test_a_worker_without_the_program_is_told(tmp_path, monkeypatch):
    (tmp_path / "dspark_sim").mkdir()
    missing = "raise ModuleNotFoundError('no such module', name='dspark_sim')\n"
    (tmp_path / "dspark_sim" / "__init__.py").write_text(missing)
    monkeypatch.chdir(tmp_path)  # where the cluster's processes look first
    with (
        cluster(tmp_path, workers=1) as running,
        pytest.raises(UserError, match=r"a worker of the scheduler at .* lacks 'dspark_sim'"),
    ):
        sweep(scenario(), ["none"], [1, 2], backend="dask", scheduler=running.address)
