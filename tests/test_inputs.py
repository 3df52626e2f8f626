"""What the runs of a sweep share, and that a run with it is the run alone."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_sim.config import Scenario
from dspark_sim.core import UserError
from dspark_sim.simulator import simulate
from dspark_sim.simulator.result import to_json
from dspark_sim.simulator.simulate import load_scenario_trace
from dspark_sim.study.inputs import SharedInputs, trace_name
from dspark_sim.study.run import Run, as_files
from dspark_sim.throughput import load_profile, write_profile
from dspark_sim.trace import load_trace, write_trace

RECORDING = "tiny-dspark-markov-t1"
MIXTURE = f"mix:chat={RECORDING},math=math-dspark,default=chat-dspark"


def scenario(**changes):
    keys = {
        "trace": "synth:fixed,in=64,out=24",
        "profile": "llama3.1-8b-h100",
        "requests": 30,
        "prefill": {"mode": "none"},
        "policy": "vllm",
        "concurrency": 4,
        "record": "requests",
    }
    return Scenario.check(keys | changes)


def shared(run, *policies):
    pieces = SharedInputs(run, policies or [run.policy]).pieces(run)
    return [make() for make in pieces.values()]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"policy": "none"},
        {"policy": "fixed:3"},
        {"policy": "oracle", "acceptance": RECORDING, "trace": "chat-1k"},
        {"acceptance": MIXTURE, "trace": "chat-1k"},
        {"acceptance": MIXTURE, "trace": "reasoning-300", "concurrency": None, "request_rate": 3.0},
        {"acceptance": "chat-dspark:auc=0.7"},
        {"belief": {"confidence_scale": 2.0, "confidence_bias": 0.5}},
        {"profile_set": {"max_num_seqs": 2}},
        {"num_speculative_tokens": 5, "seed": 3, "prefill": {"mode": "chunked"}},
    ],
    ids=str,
)
def test_a_run_with_shared_inputs_writes_the_bytes_of_the_run_alone(changes):
    run = scenario(**changes)
    result = Run(0, run, None).simulate(*shared(run))
    assert as_files(result) == as_files(simulate(run))


def test_a_run_with_shared_inputs_reads_no_file_of_its_own(tmp_path):
    temperatures, believed = tmp_path / "sts.json", tmp_path / "believed"
    temperatures.write_text('{"temperatures": [1.5, 1, 1, 1, 1, 1, 0.5]}')
    write_profile(replace(load_profile("llama3.1-8b-h100"), overhead_ms=9.0), believed)
    belief = {"temperatures": str(temperatures), "profile": str(believed)}
    run, plain = scenario(belief=belief), scenario(belief=belief, policy="none")
    expected = [as_files(simulate(one)) for one in (run, plain)]
    inputs = SharedInputs(run, ["vllm", "none"])
    temperatures.unlink()
    shutil.rmtree(believed)
    for one, files in zip((run, plain), expected, strict=True):
        pieces = [make() for make in inputs.pieces(one).values()]
        assert as_files(Run(0, one, None).simulate(*pieces)) == files
    assert expected[0] != as_files(simulate(scenario()))


def test_the_file_of_a_trace_is_read_once(tmp_path):
    path = tmp_path / "own.jsonl"
    write_trace(load_trace("synth:fixed,in=64,out=24", 30), path)
    inputs = SharedInputs(scenario(trace=str(path)), ["vllm"])
    path.unlink()
    for load in ({"concurrency": 2}, {"concurrency": None, "request_rate": 3.0}):
        run = scenario(trace=str(path), **load)
        assert len(list(inputs.pieces(run).values())[2]().trace) == 30


def test_inputs_are_made_once_and_named_alike():
    inputs = SharedInputs(scenario(trace="chat-1k"), ["vllm", "fixed:3"])
    one, two = scenario(trace="chat-1k"), scenario(trace="chat-1k", seed=5, concurrency=9)
    assert list(inputs.pieces(one)) == list(inputs.pieces(two))
    for first, second in zip(inputs.pieces(one).values(), inputs.pieces(two).values(), strict=True):
        assert first() is second()
    other = list(inputs.pieces(scenario(policy="fixed:3", trace="chat-1k")))
    assert [a == b for a, b in zip(inputs.pieces(one), other, strict=True)] == [True, False, True]


OPTIONS = st.fixed_dictionaries(
    {
        "trace": st.sampled_from(["synth:chat", "chat-1k", "synth:fixed,in=8,out=4"]),
        "seed": st.integers(0, 2),
        "requests": st.sampled_from([None, 20, 40]),
        "policy": st.sampled_from(["none", "vllm"]),
        "load": st.sampled_from(
            [{"concurrency": 1}, {"concurrency": 130}, {"concurrency": 140}, {"request_rate": 2.0},
             {"request_rate": 3.0}, {"rate_scale": 2.0}, {}]
        ),
    }
)  # fmt: skip


@given(OPTIONS, OPTIONS)
def test_runs_with_one_trace_name_have_the_same_requests(first, second):
    runs = []
    for options in (first, second):
        keys = dict(options)
        load = {"concurrency": None, **keys.pop("load")}
        runs.append(scenario(**keys, **load))
    if trace_name(runs[0]) == trace_name(runs[1]):
        traces = [load_scenario_trace(run) for run in runs]
        assert traces[0].requests.equals(traces[1].requests)
        assert traces[0].origin == traces[1].origin


def test_runs_that_differ_in_policy_or_load_alone_share_their_requests():
    base = {"trace": "chat-1k", "concurrency": 4}
    names = {trace_name(scenario(**base, **more)) for more in ({}, {"policy": "none"}, {"seed": 1})}
    names.add(trace_name(scenario(**base | {"concurrency": 8})))
    assert len(names) == 1
    drawn = {trace_name(scenario(trace="synth:chat", seed=seed)) for seed in range(3)}
    assert len(drawn) == 3


def test_a_bound_source_answers_for_its_run_alone():
    run = scenario()
    _, acceptance, trace = shared(run)
    bound = acceptance.assigned(trace.members)
    names = trace.trace.requests["category"].tolist()
    assert np.array_equal(bound.tables(names, 7).member, trace.members)
    with pytest.raises(ValueError, match="bound to another run"):
        bound.tables(names[1:], 7)
    with pytest.raises(ValueError, match="bound to another run"):
        bound.tables(names, 6)
    with pytest.raises(TypeError, match="bound to a run"):
        bound.members()


def test_a_category_without_acceptance_is_told_before_anything_runs(tmp_path):
    path = tmp_path / "own.jsonl"
    write_trace(load_trace("synth:fixed,in=64,out=24,category=poetry", 30), path)
    run = scenario(trace=str(path), acceptance="mix:chat=chat-dspark,math=math-dspark")
    inputs = SharedInputs(run, ["vllm"])
    with pytest.raises(UserError, match="poetry"):
        inputs.check(run)


def test_a_summary_is_what_its_file_says(tmp_path):
    run = scenario()
    pieces = shared(run)
    alone = Run(0, run, None).carry_out(*pieces)
    kept = Run(0, run, tmp_path / "run").carry_out(*pieces)
    assert (tmp_path / "run" / "summary.json").read_text() == to_json(alone) == to_json(kept)


def test_a_run_that_another_has_just_finished_is_taken_over(tmp_path, monkeypatch):
    run = Run(0, scenario(), tmp_path / "run")
    pieces = shared(run.scenario)
    summary = run.carry_out(*pieces)

    def fail(self, folder):
        raise OSError(39, "Directory not empty")

    monkeypatch.setattr("dspark_sim.simulator.result.Result.save", fail)
    assert run.carry_out(*pieces) == summary
    with pytest.raises(OSError, match="not empty"):
        Run(0, scenario(), tmp_path / "other").carry_out(*pieces)
