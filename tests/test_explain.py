import numpy as np
import pandas as pd
import pytest
from command_line import call, strict
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_sim import Scenario, UserError, simulate
from dspark_sim.study import explain, explain_runs, reasons, save_explain, sweep, wide
from dspark_sim.study.explain import PARTS

SMALL = {
    "trace": "synth:fixed,in=64,out=40",
    "profile": "llama3.1-8b-h100",
    "requests": 60,
    "prefill": {"mode": "none"},
}


def made_up(values, seeds=1):
    """Rows of a sweep: (policy, concurrency) to µs by part."""
    rows = []
    for (policy, concurrency), parts in values.items():
        for seed in range(seeds):
            us = {f"us_token_{part}": float(parts.get(part, 0.0)) + seed for part in PARTS}
            rows.append(
                {"policy": policy, "concurrency": concurrency, "request_rate": np.nan,
                 "seed": seed, "tok_s_gpu": 1.0, "tok_s_user": 1.0, **us,
                 "us_token": sum(us.values())}
            )  # fmt: skip
    return pd.DataFrame(rows)


TWO = {
    ("fixed:7", 8): {"pass": 20, "committed": 10, "rejected": 30, "draft": 5},
    ("vllm", 8): {"pass": 25, "committed": 10, "rejected": 10, "draft": 5},
    ("oracle", 8): {"pass": 15, "committed": 10},
}


def test_every_policy_is_compared_with_the_fastest_lossless_one():
    table = explain(made_up(TWO))
    assert set(table["against"]) == {"vllm"}
    rows = table[table["policy"] == "fixed:7"].set_index("part")
    assert rows["us_token"]["total"] == 65
    assert rows["share"]["rejected"] == pytest.approx(30 / 65)
    assert rows["difference"].to_dict() == {
        "total": 15, "pass": -5, "committed": 0, "rejected": 20, "padding": 0, "draft": 0,
        "prefill": 0, "context": 0, "overhead": 0, "idle": 0,
    }  # fmt: skip


def test_a_baseline_takes_the_place_of_the_fastest():
    table = explain(made_up(TWO), "fixed:7")
    totals = table[table["part"] == "total"].set_index("policy")["difference"]
    assert totals.to_dict() == {"fixed:7": 0.0, "vllm": -15.0, "oracle": -40.0}
    with pytest.raises(UserError, match="unknown policy 'fixed:8'"):
        explain(made_up(TWO), "fixed:8")


def test_reasons_name_the_parts_by_size():
    said = reasons(explain(made_up(TWO)))
    assert said[0] == (
        "concurrency 8: fixed:7 takes 65 µs per token, +15 µs (+30.0 %) against vllm: "
        "rejected +20, pass -5"
    )
    assert len(said) == 2


def test_differences_are_paired_by_seed():
    table = explain(made_up(TWO, seeds=4))
    rows = table[(table["policy"] == "fixed:7") & (table["part"] == "rejected")].iloc[0]
    assert rows["us_token_ci95"] > 1.0
    assert rows["difference_ci95"] == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1e3), min_size=len(PARTS), max_size=len(PARTS)), st.integers(1, 3))
def test_parts_add_up_and_so_do_differences(us, seeds):
    values = {("none", 1): dict(zip(PARTS, us, strict=True)), ("vllm", 1): {"pass": 1.0}}
    table = explain(made_up(values, seeds))
    for _, rows in table.groupby("policy"):
        parts = rows[rows["part"] != "total"]
        total = rows[rows["part"] == "total"].iloc[0]
        for column in ("us_token", "difference"):
            assert parts[column].sum() == pytest.approx(total[column], abs=1e-6)


def test_loads_keep_their_order_and_parts_that_never_occur_are_left_out():
    runs = made_up({("none", 16): {"pass": 3}, ("none", 2): {"pass": 5}})
    table = wide(explain(runs))
    assert table["load"].tolist() == [2, 16]
    assert list(table.columns) == ["load", "policy", "total", "pass"]


def test_a_sweep_and_single_results_are_explained_alike(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loads = [2, 8]
    runs = sweep(Scenario(**SMALL), ["none", "fixed:3"], loads, seeds=[0, 1], out="s")
    code, out, err = call("explain", "s", "--json")
    assert (code, err) == (0, "")
    answer = strict(out)
    totals = [row for row in answer["parts"] if row["part"] == "total"]
    assert len(totals) == 4
    for row in totals:
        mean = runs.query("policy == @row['policy'] and concurrency == @row['concurrency']")
        measured = 1e6 / mean["output_tok_s"]
        assert row["us_token"] == pytest.approx(measured.mean(), rel=1e-3)
    assert len(answer["why"]) == 2
    for suffix in ("png", "svg"):
        assert (tmp_path / "s" / f"explain.{suffix}").stat().st_size > 5000
    for policy in ("none", "fixed:3"):
        simulate(Scenario(**SMALL, policy=policy, concurrency=8)).save(policy)
    code, out, err = call("explain", "none", "fixed:3")
    assert (code, err) == (0, "")
    assert "concurrency 8: none takes" in out
    assert "picture: none-explain.png" in out
    single = explain_runs(["none", "fixed:3"])
    whole = runs[(runs["seed"] == 0) & (runs["concurrency"] == 8)]
    for part in PARTS:
        assert single[f"us_token_{part}"].tolist() == pytest.approx(
            whole[f"us_token_{part}"].tolist()
        )


def test_a_table_without_split_times_is_refused(tmp_path):
    with pytest.raises(UserError, match="lacks the column 'us_token'"):
        explain(made_up(TWO).drop(columns="us_token"))
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(UserError, match="no whole result"):
        explain_runs([tmp_path])


def test_a_rate_and_a_trace_of_its_own_times_can_be_drawn(tmp_path):
    runs = made_up(TWO)
    runs["concurrency"] = np.nan
    save_explain(explain(runs), tmp_path / "own.png")
    assert reasons(explain(runs))[0].startswith("fixed:7 takes")
    runs["request_rate"] = 4.0
    save_explain(explain(runs), tmp_path / "rate.png")
    assert reasons(explain(runs))[0].startswith("4 req/s: fixed:7 takes")
