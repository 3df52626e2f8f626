import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from scenarios import cases, make_profile, make_trace
from test_simulate import examples

from dspark_sim import Scenario, UserError
from dspark_sim.simulator import Inputs, simulate
from dspark_sim.simulator.result import to_json

ROUTERS = ("round-robin", "least-loaded", "random")


def open_loop(case, **changes):
    changes = {"concurrency": None, "profile": "toy"} | changes
    scenario = Scenario.check(case.scenario.model_dump() | changes)
    return type(case)(scenario, case.trace, case.profile, case.source)


def alike(a, b):
    pd.testing.assert_frame_equal(a.requests, b.requests)
    pd.testing.assert_frame_equal(a.steps, b.steps)
    assert to_json(a.summary) == to_json(b.summary)


@given(cases())
@examples(60)
def test_one_replica_behind_any_router_is_the_engine_alone(case):
    alone = open_loop(case).run()
    for router in ROUTERS:
        alike(open_loop(case, router=router).run(), alone)


@given(cases())
@examples(40)
def test_the_least_loaded_replica_gets_the_request(case):
    rows = open_loop(case, router="least-loaded", replicas=3).run().requests
    arrival, finish = (np.rint(rows[f"{key}_s"] * 1e9) for key in ("arrival", "finish"))
    for request in range(len(rows)):
        before = rows.index < request
        inside = before & ((finish > arrival[request]) | (arrival == arrival[request]))
        load = [int((inside & (rows["replica"] == number)).sum()) for number in range(3)]
        assert rows["replica"][request] == int(np.argmin(load)), load


@given(cases())
@examples(20)
def test_step_by_step_a_fleet_does_the_same(case):
    for router in ROUTERS:
        fleet = open_loop(case, router=router, replicas=2)
        alike(fleet.run(stepwise=True), fleet.run())


def test_replicas_in_turn_are_engines_that_never_meet():
    trace = make_trace(np.arange(30) / 1000, [10, 3, 7] * 10, [5, 9, 1] * 10)
    profile = make_profile(max_num_seqs=2)
    scenario = {"profile": "toy", "policy": "none"}
    fleet = simulate(Scenario(**scenario, replicas=3), Inputs(trace, profile)).requests
    assert fleet["replica"].tolist() == [0, 1, 2] * 10
    for number in range(3):
        rows = trace.requests[number::3]
        own = make_trace(rows["arrival_s"], rows["prompt_tokens"], rows["output_tokens"])
        alone = simulate(Scenario(**scenario), Inputs(own, profile)).requests
        mine = fleet[fleet["replica"] == number]
        for column in ("first_token_s", "finish_s", "steps"):
            assert mine[column].tolist() == alone[column].tolist()


def test_rates_are_of_all_replicas_and_shares_of_one():
    trace = make_trace([0.0, 0.0], [1, 1], [101, 101])
    scenario = Scenario(profile="toy", policy="none", prefill={"mode": "none"}, replicas=2)
    result = simulate(scenario, Inputs(trace, make_profile(num_gpus=4)))
    summary = result.summary
    assert summary["output_tok_s"] == pytest.approx(202 / 0.110)  # 100 steps of 1.1 ms each
    assert summary["tok_s_gpu"] == pytest.approx(202 / 0.110 / 8)
    assert summary["utilisation"] == pytest.approx(1.0)
    assert summary["mean_running"] == pytest.approx(2.0)
    assert summary["us_token"] == pytest.approx(2 * 0.110e6 / 202)
    assert summary["us_token_idle"] == 0.0
    assert result.steps["replica"].tolist() == [0] * 100 + [1] * 100


def test_a_random_router_follows_the_seed():
    trace = make_trace(np.arange(200) / 100, [4] * 200, [4] * 200)

    def served(seed):
        scenario = Scenario(profile="toy", policy="none", replicas=4, router="random", seed=seed)
        return simulate(scenario, Inputs(trace, make_profile())).requests["replica"].tolist()

    assert served(1) == served(1) != served(2)
    assert set(served(1)) == {0, 1, 2, 3}


def test_more_replicas_than_requests_stand_idle():
    trace = make_trace([0.0], [4], [4])
    for router in ROUTERS:
        scenario = Scenario(profile="toy", policy="vllm", replicas=5, router=router)
        summary = simulate(scenario, Inputs(trace, make_profile())).summary
        assert summary["completed"] == 1
        assert summary["utilisation"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"concurrency": 4}, "closed loop has one replica"),
        ({"warmup_s": 1.0}, "measured whole"),
        ({"router": "fastest"}, "router = 'fastest'"),
        ({"replicas": 0}, "replicas = 0"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(keys, words):
    with pytest.raises(UserError, match=words):
        Scenario.check({"profile": "toy", "replicas": 2} | keys)
