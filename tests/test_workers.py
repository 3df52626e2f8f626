"""Who carries out the runs of a sweep, and what is sent to them."""

from concurrent.futures.process import BrokenProcessPool

import cloudpickle
import joblib
import numpy as np
import pandas as pd
import pytest

from dspark_sim.config import Scenario
from dspark_sim.core import RunError, UserError
from dspark_sim.study import sweep
from dspark_sim.study.workers import Workers

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


class OneByOne:
    """Stands in for joblib's processes: pickles what they would be sent, runs it here."""

    def __init__(self, **options):
        self.options = options

    def __call__(self, tasks):
        for task in tasks:
            self.sent.append(cloudpickle.dumps(task))
            function, arguments, _ = cloudpickle.loads(self.sent[-1])
            self.mapped.append(joblib.load(arguments[2], mmap_mode="c"))
            yield function(*arguments)


@pytest.fixture
def pool(monkeypatch):
    """Replace the worker processes by a pool that tells what it was sent and what it mapped."""
    kind = type("Pool", (OneByOne,), {"sent": [], "mapped": []})
    monkeypatch.setattr(joblib, "Parallel", kind)
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
    def killed(self, tasks):
        yield from list(OneByOne.__call__(self, tasks[:2]))
        raise BrokenProcessPool("a worker process managed by the executor was terminated\n" * 3)

    monkeypatch.setattr(pool, "__call__", killed)
    with pytest.raises(RunError, match="a worker process was killed") as caught:
        sweep(scenario(), ["none", "vllm"], [1, 4], jobs=2, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["runs"]


def test_nothing_is_started_where_nothing_is_missing(pool, tmp_path):
    sweep(scenario(), ["none", "vllm"], [1, 4], out=tmp_path)
    again = sweep(
        scenario(), ["none", "vllm"], [1, 4], out=tmp_path, backend="dask", scheduler="nowhere"
    )
    assert len(again) == 4
    assert pool.sent == []
