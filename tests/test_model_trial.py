from __future__ import annotations

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from model_lively import lively_target  # noqa: E402
from model_nano import nano_drafter  # noqa: E402

from dspark_sim.config import Scenario  # noqa: E402
from dspark_sim.core import NS_PER_S, UserError  # noqa: E402
from dspark_sim.model.engine import EngineRun  # noqa: E402
from dspark_sim.model.engine.costs import (  # noqa: E402
    Cell,
    CostBench,
    CostGrid,
    Script,
    cost_table,
    profile_of_costs,
)
from dspark_sim.model.engine.schedule import Limits  # noqa: E402
from dspark_sim.model.trial import TrialPlan, run_measures, run_trial  # noqa: E402
from dspark_sim.simulator import simulate  # noqa: E402
from dspark_sim.study.validate import Settings, validate  # noqa: E402
from dspark_sim.study.validate.real_engine import Trial, compare, spread_pct  # noqa: E402

POLICIES = ("none", "fixed:3", "threshold:0.6", "dspark", "vllm")
SMALL = TrialPlan(policies=POLICIES, concurrency=(1, 3), requests=(5, 3), output=(4, 20), repeats=2)
GRID = CostGrid(contexts=(0.4,), lengths=(0, 7), ragged=(2,), chunks=(0, 16), alone=(16,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("trial") / "small"
    run_trial(place, SMALL, grid=GRID)
    return place


def test_the_simulator_takes_the_real_engines_steps(folder):
    trial = Trial.read(folder)
    for row in trial.runs.to_dict("records"):
        found = trial.simulated(row["policy"], row["concurrency"], row["requests"])
        assert found["steps"] == row["steps"], row["policy"]
        for name in ("verify_budget", "acceptance_length"):
            assert found[name] == pytest.approx(row[name], abs=1e-6), row["policy"]


def test_a_trial_is_compared_point_by_point(folder):
    (found,) = validate(["V5"], Settings(trial=folder))
    trial = Trial.read(folder)
    assert len(found.points) == 5 * len(POLICIES) * len(SMALL.concurrency)
    assert found.points == tuple(compare(trial))
    assert [point.error_pct for point in found.points if point.quantity == "verify_budget"] == (
        pytest.approx([0.0] * 10, abs=1e-4)
    )
    assert found.checks[0].bound == max(5.0, 1.5 * spread_pct(trial.runs))
    assert "tiny with dspark-markov" in found.by_hand[0]
    assert json.loads((folder / "trial.json").read_text(encoding="utf-8"))["repeats"] == 2


def test_a_folder_that_is_there_is_refused(folder):
    with pytest.raises(UserError, match="exists already, a trial needs a new folder"):
        run_trial(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repeats": 0}, "repeats must be 1 or more, got 0"),
        ({"threads": 0}, "threads must be 1 or more, got 0"),
        ({"requests": (0, 1)}, "requests must be 1 or more, got 0"),
        ({"policies": ("oracle",)}, "knows true outcomes, which a real engine does not"),
        ({"policies": ("fixed:9",)}, "wants 9 draft tokens, but the drafter drafts 7"),
    ],
)
def test_a_plan_that_cannot_be_run_is_told_and_leaves_nothing(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        run_trial(tmp_path / "new", replace(SMALL, **settings))
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_trial_is_told(tmp_path):
    with pytest.raises(UserError, match="is no folder of a trial"):
        Trial.read(tmp_path)


def test_measures_of_a_run_are_the_simulators_metrics():
    """The same formulas on both sides: a simulation's own tables give its own summary."""
    result = simulate(
        Scenario(profile="llama3.1-8b-h100", policy="vllm", concurrency=4, requests=60)
    )
    steps = result.steps
    ends = (steps["start_ns"] + steps["step_ns"]).to_numpy()
    finish = np.sort((result.requests["finish_s"] * NS_PER_S).round().astype(np.int64))
    issues = np.sort((result.requests["arrival_s"] * NS_PER_S).round().astype(np.int64))
    parts = dict.fromkeys(
        [f"{part}_ns" for part in ("draft", "verify", "sample", "extend", "policy", "host")], 0
    )
    run = EngineRun(
        result.requests, steps.assign(**parts), result.gaps, (finish[3], issues[-1]), []
    )
    found = run_measures(run)
    assert set(ends) >= {finish[3], issues[-1]}
    for name in (
        *("output_tok_s", "tok_s_user", "ttft_p50_ms", "ttft_mean_ms", "step_ms"),
        *("verify_budget", "acceptance_length", "steps"),
    ):
        assert found[name] == pytest.approx(result.summary[name], rel=1e-9), name


def cost_steps(*steps):
    """Steps of two requests that verify 3 drafts: (chunk, step_ms, draft_ms)."""
    return pd.DataFrame(
        {"requests": 2, "length": 3, "context": 48, "chunk": chunk, "ragged": False,
         "num_requests": 2 + (chunk > 0), "batch_tokens": 8 + chunk, "kv_tokens_read": 96,
         "step_ms": step, "draft_ms": draft}
        for chunk, step, draft in steps
    )  # fmt: skip


def test_the_draft_of_a_cell_is_that_of_the_cell_without_a_chunk():
    table = cost_table(cost_steps((0, 10.0, 4.0), (0, 12.0, 4.0), (16, 20.0, 5.0), (16, 22.0, 5.0)))
    assert table["draft_ms"].tolist() == [4.0, 4.0]
    assert table["ms"].tolist() == [7.0, 17.0]
    assert table["n"].tolist() == [2, 2]


def test_a_grid_keeps_to_the_engines_limits():
    cells = GRID.cells(Limits(4, 40, 64), 7)
    assert Cell(4, 25, 7) in cells
    assert Cell(4, 25, 7, 16) not in cells, "a chunk needs a slot"
    assert Cell(2, 25, 7, 16) in cells
    assert all(cell.length == 0 for cell in GRID.cells(Limits(4, 40, 64), 0))


@pytest.mark.parametrize("mean", [1, 3])
def test_ragged_lengths_keep_their_mean(mean):
    class View:
        draft_len = np.full(64, 50)

    script = Script()
    script.cell = Cell(64, 48, mean, ragged=True)
    lengths = script.verify_lengths(View())
    assert lengths.mean() == pytest.approx(mean, rel=0.1)
    assert lengths.min() == 0
    assert lengths.max() > 2 * mean


def test_every_step_of_a_cell_is_what_the_cell_says():
    target, drafter = lively_target(), nano_drafter("dspark-markov", lively_target())
    grid = CostGrid((0.4,), (0, 2), (2,), (0, 8), (4,))
    bench = CostBench(target, drafter, Limits(3, 48, 40), grid=grid)
    steps = pd.DataFrame([row for group in bench.groups for row in bench.measure(group)])
    plain = steps[~steps["ragged"]]
    tokens = plain["requests"] * (1 + plain["length"]) + plain["chunk"]
    assert plain["batch_tokens"].tolist() == tokens.tolist()
    assert plain["num_requests"].tolist() == (plain["requests"] + (plain["chunk"] > 0)).tolist()
    first = plain[plain["chunk"] == 0].groupby(["requests", "length"])["kv_tokens_read"].first()
    for (requests, length), kv in first.items():
        assert 0 <= kv - first[requests, 0] <= requests * length, "every cell begins where all do"
    assert steps["ragged"].any()


@pytest.mark.parametrize("slow", [(0, 500.0, 4.0), (0, 500.0, 494.0), (16, 500.0, 5.0)])
def test_costs_are_a_profile_whatever_a_step_took(slow):
    """The machine may stop for half a second anywhere: in a draft, a pass, beside a chunk."""
    steps = cost_steps(*[(0, 10.0, 4.0), (16, 20.0, 5.0)] * 19, slow)
    target = lively_target()
    drafter = nano_drafter("dspark-markov", target)
    table = profile_of_costs(steps, "stalled", target, drafter, Limits(4, 64, 96), {}).verify
    assert (table["ms"] > 0).all()
    assert table["ms"].between(table["p10_ms"], table["p90_ms"]).all()
    priced = cost_table(steps)
    paid = ((priced["ms"] + priced["draft_ms"]) * priced["n"]).sum()
    assert paid == pytest.approx(steps["step_ms"].sum())
