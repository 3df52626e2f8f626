"""Who carries out the runs of a sweep, and what is sent to them."""

import gc
import threading
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import cloudpickle
import joblib
import numpy as np
import pandas as pd
import pytest

from dspark_sim.config import Scenario
from dspark_sim.core import OBJECTS_BEFORE_COLLECTING, RunError, UserError
from dspark_sim.study import sweep
from dspark_sim.study.workers import AHEAD, IDLE_S, Workers, batch_size

RECORDING = "tiny-dspark-markov-t1"
SENT_BYTES = 2_000


def scenario(**changes):
    keys = {
        "trace": "chat-1k",
        "profile": "llama3.1-8b-h100",
        "acceptance": RECORDING,
        "requests": 20,
        "prefill": {"mode": "none"},
    }
    return Scenario.check(keys | changes)


class Pool:
    """Stands in for worker processes: pickles what they would be sent, runs it here, at once."""

    sent, mapped, ends = [], [], []

    def __init__(self, workers, timeout, initializer, initargs):
        assert (workers, timeout) == (1, IDLE_S)
        assert (initializer, initargs) == (gc.set_threshold, (OBJECTS_BEFORE_COLLECTING,))

    def submit(self, function, *arguments):
        if not arguments:
            return self.start(Future())
        self.sent.append(cloudpickle.dumps((function, arguments)))
        return self.land(Future(), function, arguments)

    def start(self, ready):
        ready.set_result(None)
        return ready

    def land(self, future, function, arguments):
        [[_, _, acceptance, _], *_] = arguments[0]
        self.mapped.append(joblib.load(acceptance, mmap_mode="c"))
        future.set_result(function(*arguments))
        return future

    def shutdown(self, kill_workers):
        self.ends.append(kill_workers)

    @classmethod
    def runs(cls):
        batches = [cloudpickle.loads(sent)[1][0] for sent in cls.sent]
        return [task[0] for batch in batches for task in batch]


@pytest.fixture
def pool(monkeypatch):
    """Replace the worker processes by a pool that tells what it was sent and what it mapped."""
    kind = type("Told", (Pool,), {"sent": [], "mapped": [], "ends": []})
    monkeypatch.setattr("dspark_sim.study.workers.get_reusable_executor", kind)
    monkeypatch.setattr("dspark_sim.study.workers.is_compiled", lambda: True)
    return kind


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("loki",), "unknown backend 'loki': did you mean 'loky'"),
        (("loky", 0), "jobs must be 1 or more, or -1 for all cores, got 0"),
        (("dask",), "backend dask needs the address of its scheduler"),
        (("loky", 1, "tcp://127.0.0.1:8786"), "belongs to the backend dask"),
    ],
)
def test_workers_that_cannot_be_are_told(arguments, words):
    with pytest.raises(UserError, match=words):
        Workers(*arguments)


def test_a_worker_is_sent_a_run_and_the_paths_of_its_inputs(pool, tmp_path):
    policies, loads = ["none", "fixed:3", "vllm"], [1, 4]
    table = sweep(scenario(), policies, loads, seeds=(0, 1), out=tmp_path / "two", jobs=2)
    assert len(pool.sent) == len(table) == 12
    assert max(map(len, pool.sent)) < SENT_BYTES
    pd.testing.assert_frame_equal(
        table, sweep(scenario(), policies, loads, seeds=(0, 1), out=tmp_path / "one")
    )
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["runs", "sweep.csv"]
    assert pool.ends == []


def test_quick_runs_go_to_workers_in_batches_that_shrink():
    sizes = [batch_size(waiting, 1, 60.0) for waiting in range(480, -1, -1)]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (15, 1)
    assert batch_size(480, 3, 60.0) == 7


@pytest.mark.parametrize("runs_per_s", [0.0, 0.01, 1.0, 2.0])
def test_long_runs_go_to_workers_one_by_one(runs_per_s):
    assert batch_size(480, 1, runs_per_s) == 1


def test_a_batch_gives_the_rows_that_its_runs_give_alone(pool, monkeypatch):
    monkeypatch.setattr("dspark_sim.study.workers.batch_size", lambda *state: 5)
    policies, loads = ["none", "fixed:3", "vllm"], [1, 4]
    table = sweep(scenario(), policies, loads, seeds=(0, 1), jobs=2)
    assert [len(cloudpickle.loads(sent)[1][0]) for sent in pool.sent] == [5, 5, 2]
    pd.testing.assert_frame_equal(table, sweep(scenario(), policies, loads, seeds=(0, 1)))


def test_this_process_works_from_the_back_while_workers_are_busy(pool, monkeypatch):
    def later(self, future, *task):
        threading.Timer(0.5, Pool.land, (self, future, *task)).start()
        return future

    monkeypatch.setattr(pool, "land", later)
    policies, loads = ["none", "fixed:3", "vllm"], [1, 4]
    table = sweep(scenario(), policies, loads, seeds=(0, 1), jobs=2)
    assert len(pool.sent) == AHEAD
    first = [run.scenario for run in pool.runs()]
    assert [(run.policy, run.seed) for run in first] == [("none", 0), ("none", 1)]
    pd.testing.assert_frame_equal(table, sweep(scenario(), policies, loads, seeds=(0, 1)))


def test_the_arrays_of_a_recording_stay_on_disk(pool):
    sweep(scenario(), ["vllm"], [1, 4], jobs=2)
    arrays = pool.mapped[0].arrays
    assert isinstance(arrays.recorded_confidence, np.memmap)
    assert arrays.recorded_confidence.shape[1] == 7
    assert len(arrays.recorded_accepted) > 10_000


def test_the_first_run_compiles_before_workers_start(pool, monkeypatch):
    monkeypatch.setattr("dspark_sim.study.workers.is_compiled", lambda: False)
    table = sweep(scenario(), ["none", "vllm"], [1, 4], jobs=2)
    assert (len(table), len(pool.sent)) == (4, 3)


def test_a_killed_worker_is_told_in_one_sentence(pool, monkeypatch, tmp_path):
    def killed(self, future, *task):
        if len(self.mapped) < 2:
            return Pool.land(self, future, *task)
        future.set_exception(BrokenProcessPool("a worker was terminated\n" * 3))
        return future

    monkeypatch.setattr(pool, "land", killed)
    with pytest.raises(RunError, match="a worker process was killed") as caught:
        sweep(scenario(), ["none", "vllm"], [1, 4], jobs=2, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["runs"]
    assert pool.ends == [True]


def test_a_pool_that_is_lost_before_a_run_is_sent_is_told_too(pool, monkeypatch):
    def lost(self, function, *arguments):
        if arguments:
            raise BrokenProcessPool("no worker is left")
        return self.start(Future())

    monkeypatch.setattr(pool, "submit", lost)
    with pytest.raises(RunError, match="a worker process was killed"):
        sweep(scenario(), ["none", "vllm"], [1, 4], jobs=2)


def test_a_worker_that_is_killed_while_it_starts_is_told_too(pool, monkeypatch):
    def killed(self, ready):
        ready.set_exception(BrokenProcessPool("a worker was terminated"))
        return ready

    monkeypatch.setattr(pool, "start", killed)
    with pytest.raises(RunError, match="a worker process was killed"):
        sweep(scenario(), ["none", "vllm"], [1, 4], jobs=2)


def test_a_short_sweep_does_not_wait_for_workers_to_start(pool, monkeypatch):
    monkeypatch.setattr(pool, "start", lambda self, ready: ready)
    table = sweep(scenario(), ["none", "vllm"], [1, 4], jobs=2)
    pd.testing.assert_frame_equal(table, sweep(scenario(), ["none", "vllm"], [1, 4]))
    assert (pool.sent, pool.ends) == ([], [True])


def test_nothing_is_started_where_nothing_is_missing(pool, tmp_path):
    sweep(scenario(), ["none", "vllm"], [1, 4], out=tmp_path)
    again = sweep(
        scenario(), ["none", "vllm"], [1, 4], out=tmp_path, backend="dask", scheduler="nowhere"
    )
    assert len(again) == 4
    assert pool.sent == []
