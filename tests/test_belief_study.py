import numpy as np
import pandas as pd
import pytest
from command_line import call, strict
from scenarios import make_profile

from dspark_sim import Scenario, UserError
from dspark_sim.study import Doubts, belief_study
from dspark_sim.study.belief import PERFECT, VERIFY_ALL, drift, with_lag

SMALL = {
    "trace": "synth:fixed,in=64,out=40",
    "requests": 96,
    "prefill": {"mode": "none"},
}
DENSE = Scenario(**SMALL, profile="llama3.1-8b-h100", acceptance="code-dspark")
MOE = Scenario(**SMALL, profile="dsv4-flash-b300-tp4")


def names(scenario, policy, **doubts):
    return [wrong.name for wrong in Doubts(**doubts).beliefs(scenario, policy)]


def test_a_policy_holds_the_beliefs_that_it_and_its_profile_have():
    assert names(DENSE, "vllm") == [
        PERFECT, "flat table", "no context term", "stale table", "floor lookup", "no draft term",
        "raw confidence", "lag 0", "lag 2", "lag 3",
    ]  # fmt: skip
    assert names(MOE, "threshold:0.5", stale_profile="llama3.1-8b-h100") == [
        PERFECT, "flat table", "other table", "floor lookup", "no draft term", "raw confidence",
    ]  # fmt: skip


def test_a_flat_table_verifies_everything_and_loses_are_paired():
    table = belief_study(DENSE, ["dspark-async"], [24], seeds=[0, 1])
    rows = table.set_index("belief")
    assert rows.loc[PERFECT, "loss_pct"] == 0.0
    assert rows.loc["flat table", "verify_budget"] == rows.loc[VERIFY_ALL, "verify_budget"] == 8.0
    assert rows.loc["flat table", "loss_pct"] == pytest.approx(
        rows.loc[VERIFY_ALL, "loss_pct"], abs=1.5
    )
    assert rows.loc["flat table", "loss_pct"] > 0
    assert (rows["n_seeds"] == 2).all()
    assert np.isfinite(rows["loss_pct_ci95"]).all()


def test_drift_is_the_difference_of_two_laws_logits():
    assert drift("code-dspark", DENSE) == 0.0
    assert drift("chat-dspark", DENSE) < -0.3  # chat's drafter thinks less of code
    wrong = {one.name: one for one in Doubts(drift_from="chat-dspark").beliefs(DENSE, "vllm")}
    assert wrong["drift"].keys["confidence_bias"] == drift("chat-dspark", DENSE)
    with pytest.raises(UserError, match="two laws of published rates"):
        drift("tiny-dspark-markov-t1", DENSE)


def test_a_recording_is_calibrated_by_its_own_temperatures_and_raw_without():
    recorded = DENSE.model_copy(update={"acceptance": "tiny-dspark-markov-t1"})
    wrong = {one.name: one for one in Doubts().beliefs(recorded, "dspark-async")}
    assert wrong[PERFECT].keys["temperatures"] == "recorded"
    assert wrong["raw confidence"].keys["temperatures"] is None


def test_lags_are_those_of_the_policys_name():
    assert with_lag("dspark-async", 1) == "dspark-async:lag=1"


def test_a_table_of_another_context_holds_its_cost():
    profile = make_profile(context_ms_per_kv_token=0.001)
    costs = profile.tables(2, 4)
    stale = costs.at_context(1000)
    extra = (stale.verify_ns - costs.verify_ns) / 1e6
    assert extra[[1, 3, 4, 100]].tolist() == [1.0, 3.0, 4.0, 4.0]
    with pytest.raises(UserError, match="context or context_tokens"):
        Scenario.check({"profile": "toy", "belief": {"context": True, "context_tokens": 1}})


def test_the_command_writes_a_table_and_a_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--profile", "llama3.1-8b-h100", "--trace", SMALL["trace"], "--requests", 40,
               "--prefill", "none", "--policy", "dspark", "--concurrency", "4", "--seeds", 2,
               "--jobs", 1]  # fmt: skip
    code, out, err = call("belief", *options, "--out", "b")
    assert (code, err) == (0, "")
    assert "flat table: every batch costs the same" in out
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        "belief.csv", "belief.png", "belief.svg",
    ]  # fmt: skip
    rows = pd.DataFrame(strict(call("belief", *options, "--json")[1]))
    assert rows["belief"].iloc[0] == PERFECT
    assert rows["belief"].iloc[-1] == VERIFY_ALL
