from dataclasses import replace
from math import exp, factorial, floor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import call, strict
from scenarios import make_profile
from scipy.optimize import brentq

from dspark_sim import Scenario, UserError
from dspark_sim.study import DrafterMemory, Planner, Slo, plan
from dspark_sim.study.capacity import good_share, replicas_for
from dspark_sim.throughput import write_profile

AZURE = Path(__file__).parents[2] / "shared/data/traces/AzureLLMInferenceTrace_conv.csv"
FLAT = pd.DataFrame({"batch_tokens": [1, 512], "ms": [100.0, 100.0]})

QUICK = {"requests": 200, "seeds": (2, 3), "tolerance": 0.3}


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """Write a profile folder into an empty current one."""
    monkeypatch.chdir(tmp_path)

    def write(**changes):
        keys = {"verify": FLAT, "provenance": {"source": "a test"}} | changes
        write_profile(make_profile(**keys), tmp_path / "toy")
        return "./toy"

    return write


def scenario(profile, trace="synth:fixed,in=8,out=11", **changes):
    keys = {"policy": "none", "prefill": {"mode": "none"}, "request_rate": 8.0, "requests": 600}
    return Scenario(profile=profile, trace=trace, **(keys | changes))


def waits_longer(rate, service, limit):
    """P(W > limit) of M/D/1, by Erlang's formula."""
    terms = (
        (rate * (k * service - limit)) ** k / factorial(k) * exp(-rate * (k * service - limit))
        for k in range(floor(limit / service) + 1)
    )
    return 1 - (1 - rate * service) * sum(terms)


def test_one_slot_is_mdone_and_the_largest_rate_is_erlangs(profile):
    """11 tokens, the first at admission, 10 steps of 100 ms: service is 1 s, always."""
    name = profile(max_num_seqs=1)
    limit = 3.0
    exact = brentq(lambda rate: waits_longer(rate, 1.0, limit) - 0.05, 0.05, 0.95)
    answer = plan(
        scenario(name, request_rate=2.0), Slo({"ttft": 1e3 * limit}), ["none"],
        price_per_gpu_hour=3.0, requests=1500, tolerance=0.02, seeds=(3, 8),
    )  # fmt: skip
    row = answer.table.iloc[0]
    assert row["max_rate"] <= exact * 1.04
    assert row["max_rate_high"] >= exact * 0.96
    assert row["limit"] == "slots"
    # by hand: 2 requests/s over the rate of one, one GPU each, 22 tokens/s for all
    assert row["replicas_by_rate"] == np.ceil(2.0 / row["max_rate"])
    assert row["gpus"] == row["replicas"]
    assert row["cost_per_mtok"] == pytest.approx(row["gpus"] * 3.0 / (2.0 * 11 * 3600) * 1e6)
    assert row["headroom_pct"] == pytest.approx(100 * (row["replicas"] * row["max_rate"] / 2.0 - 1))


def test_an_engine_that_never_slows_is_bound_by_compute(profile):
    """Four slots of 1 s each, every TPOT is 100 ms: the full engine finishes 4 a second."""
    answer = plan(scenario(profile(max_num_seqs=4)), Slo({"tpot": 110.0}), ["none"], requests=800)
    row = answer.table.iloc[0]
    assert row["limit"] == "compute"
    assert row["max_rate_high"] == pytest.approx(4.0, rel=0.02)
    assert row["max_rate"] >= row["max_rate_high"] / 1.021
    assert answer.points["verdict"].unique().tolist() == ["met"]


def test_an_infeasible_slo_names_what_binds(profile):
    name = profile()
    answer = plan(scenario(name), Slo({"tpot": 90.0, "ttft": 500.0}), ["none", "fixed:1"], **QUICK)
    assert answer.recommended == "fixed:1"
    assert answer.table["feasible"].tolist() == [False, True]
    row = answer.table.iloc[0]
    assert (row["limit"], row["max_rate"]) == ("TPOT", 0.0)
    assert row["because"] == ("P95 TPOT is 100 ms with one request at a time, the limit is 90 ms")
    assert not row["confirmed"]
    assert np.isnan(row["gpus"])
    code, out, err = call(
        "plan", "--profile", name, "--trace", "synth:fixed,in=8,out=11", "--request-rate", 8,
        "--requests", 200, "--prefill", "none", "--policy", "none", "--goodput", "tpot:90",
        "--jobs", 1,
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "none: infeasible: TPOT binds: P95 TPOT is 100 ms" in out
    assert out.endswith("no lossless policy keeps the SLO\n")


def test_a_step_that_grows_is_bound_by_tpot(profile):
    sizes = [1, 512]
    verify = pd.DataFrame({"batch_tokens": sizes, "ms": [100.0, 100.0 + 5.0 * 511]})
    answer = plan(scenario(profile(verify=verify)), Slo({"tpot": 150.0}), ["none"], requests=600)
    row = answer.table.iloc[0]
    assert row["limit"] == "TPOT"
    # 150 ms is 11 in the batch: 7.3 a second if their number never varied, less as it does
    assert 0.5 * 11 / 1.5 < row["max_rate"] < 11 / 1.5
    assert set(answer.points["verdict"]) >= {"met", "violated"}


def test_a_small_kv_cache_binds_and_a_drafter_makes_it_smaller(profile):
    name = profile(kv_tokens=200, block_size=1)
    load = scenario(name, request_rate=8.0)
    slo = Slo({"ttft": 500.0})
    memory = DrafterMemory(weights_gib=1 / 16, kv_bytes=2**19, target_kv_bytes=2**20)
    settings = {"requests": 300, "tolerance": 0.1, "seeds": (2, 4)}
    alone = plan(load, slo, ["none", "fixed:1"], **settings).table.set_index("policy")
    with_drafter = plan(load, slo, ["none", "fixed:1"], drafter_memory=memory, **settings)
    beside = with_drafter.table.set_index("policy")
    assert alone["limit"].tolist() == ["KV", "KV"]
    assert beside.loc["none", "max_rate"] == alone.loc["none", "max_rate"]
    assert beside.loc["fixed:1", "max_rate"] < 0.6 * alone.loc["fixed:1", "max_rate"]
    assert Planner(load, slo, drafter_memory=memory).scenario_of("fixed:1").profile_set == {
        "kv_tokens": int((200 - 64) / 1.5)
    }


def test_points_that_violate_are_never_on_the_frontier(tmp_path):
    load = Scenario(
        profile="dsv4-flash-b300-tp4", trace="chat-1k", prefill={"mode": "none"}, request_rate=60.0,
    )  # fmt: skip
    slo = Slo({"tpot": 4.0})
    answer = plan(load, slo, ["vllm", "oracle"], **QUICK)
    best = answer.points[answer.points["on_frontier"]]
    assert len(best)
    assert set(best["verdict"]) == {"met"}
    assert "oracle" not in set(best["policy"])
    assert (best["tpot_p95_ms"] <= 4.0).all()
    assert answer.recommended == "vllm"
    assert set(answer.points["verdict"]) >= {"met", "violated"}


def test_a_plan_does_not_depend_on_its_workers_and_its_files_hold_it(profile, tmp_path):
    name = profile()
    options = ["--profile", name, "--trace", "synth:fixed,in=8,out=11", "--request-rate", 30,
               "--requests", 200, "--prefill", "none", "--policy", "fixed:1..3:2", "--goodput",
               "ttft:400 tpot:120", "--run-requests", 100, "--seeds", 3, "--json", "--price", 2,
               "--tolerance", 30]  # fmt: skip
    code, out, err = call("plan", *options, "--jobs", 1, "--out", "p")
    assert (code, err) == (0, "")
    assert call("plan", *options, "--jobs", 2)[1] == out
    answer = strict(out)
    assert [row["policy"] for row in answer["policies"]] == ["fixed:1", "fixed:3"]
    assert answer["slo"] == {"ttft": 400.0, "tpot": 120.0}
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == [
        "plan.csv", "plan.png", "plan.svg", "points.csv",
    ]  # fmt: skip


def test_the_peak_is_that_of_the_busiest_window(profile, tmp_path):
    name = profile()
    times = np.concatenate([np.arange(0, 100, 1.0), 100 + np.arange(0, 10, 0.1)])
    lines = [
        f'{{"timestamp": {1e3 * t:.0f}, "input_length": 8, "output_length": 4}}' for t in times
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    load = Scenario(profile=name, trace="t.jsonl", policy="none")
    planner = Planner(load, Slo({"ttft": 1e3}), peak_window_s=10)
    assert planner.peak_rate == pytest.approx(10.0)
    assert planner.mean_rate == pytest.approx(199 / 109.9)
    assert replace(planner, peak_window_s=1e6).peak_rate == pytest.approx(
        planner.mean_rate, rel=0.02
    )


def test_shares_are_read_between_rates():
    class At:
        def __init__(self, rate, good):
            self.rate, self.good = rate, good

    points = [At(1.0, 1.0), At(3.0, 0.5)]
    assert [good_share(points, rate) for rate in (0.5, 2.0, 9.0)] == [1.0, 0.75, 0.5]
    assert np.isnan(good_share([], 1.0))
    assert replicas_for(6.0, 3.0) == 2
    assert replicas_for(6.1, 3.0) == 3
    assert replicas_for(6.0, 0.0) == np.inf


@pytest.mark.parametrize(
    ("keys", "settings", "words"),
    [
        ({"concurrency": 4, "request_rate": None}, {}, "not a concurrency"),
        ({}, {"price_per_gpu_hour": -1.0}, "must be positive"),
        ({}, {"seeds": (1, 4)}, "2 or more seeds"),
        ({}, {"requests": 10}, "100 or more requests"),
        ({}, {"drafter_memory": DrafterMemory(1, 1, 1)}, "unlimited kv_tokens"),
        ({"trace": "a=b.jsonl", "requests": None}, {}, "no comma, colon or ="),
    ],
)
def test_a_plan_that_cannot_be_is_refused(profile, keys, settings, words):
    with pytest.raises(UserError, match=words):
        plan(scenario(profile(), **keys), Slo({"ttft": 100.0}), ["fixed:1"], **settings)


@pytest.mark.slow
def test_azure_is_planned_and_the_fleet_confirms_it():
    if not AZURE.is_file():
        pytest.skip("the public Azure trace is not here")
    load = Scenario(profile="dsv4-flash-b300-tp4", trace=str(AZURE), rate_scale=15.0)
    answer = plan(load, Slo({"ttft": 1000, "tpot": 20}), ["fixed:3", "vllm"])
    table = answer.table
    assert (table["replicas"] >= 8).all()
    assert table["confirmed"].all()
    assert (table["goodput_error_pct"].abs() <= 5).all()
