import numpy as np
import pandas as pd
import pytest

from dspark_sim.core import UserError
from dspark_sim.study import league, save_league
from dspark_sim.study.league import KEPT

RATES = {"none": [10, 20], "fixed:2": [20, 30], "vllm": [22, 36], "forecast": [33, 45],
         "oracle": [40, 60]}  # fmt: skip


def runs_of(rates=RATES, loads=(4,)):
    return pd.DataFrame(
        [
            {"policy": policy, "concurrency": load, "request_rate": np.nan, "seed": seed,
             "tok_s_gpu": float(value), **dict.fromkeys(KEPT, 1.0)}
            for policy, values in rates.items()
            for load in loads
            for seed, value in enumerate(values)
        ]
    )  # fmt: skip


def test_each_policy_is_compared_with_the_best_fixed_length_and_the_best_published_rule():
    table = league(runs_of()).set_index("policy")
    assert table.index.tolist() == ["oracle", "forecast", "vllm", "fixed:2", "none"]
    assert set(table["best_fixed"]) == {"fixed:2"}
    assert set(table["best_published"]) == {"vllm"}
    # vllm over fixed:2 is +10 % and +20 %: mean 15, t(1) at 97.5 % is 12.706, error 5.
    assert table["over_fixed_pct"]["vllm"] == pytest.approx(15.0)
    assert table["over_fixed_ci95"]["vllm"] == pytest.approx(12.7062 * 5.0, rel=1e-4)
    assert table["over_published_pct"]["forecast"] == pytest.approx(37.5)
    assert table["over_published_pct"]["vllm"] == 0.0


def test_nothing_drafted_counts_as_a_fixed_length_and_a_longer_block_does_not():
    table = league(runs_of({"none": [30], "fixed:2": [20], "fixed:2,gamma=7": [40]}))
    assert set(table["best_fixed"]) == {"none"}
    assert set(table["best_published"]) == {"fixed:2,gamma=7"}


def test_loads_are_ranked_apart():
    table = league(runs_of(loads=(16, 4)))
    assert table["concurrency"].tolist() == [4] * 5 + [16] * 5


@pytest.mark.parametrize("rates", [{"vllm": [1.0]}])
def test_a_league_without_a_fixed_length_is_refused(rates):
    with pytest.raises(UserError, match="no fixed length at concurrency 4"):
        league(runs_of(rates))


def test_a_league_without_a_closed_loop_is_refused():
    with pytest.raises(UserError, match="give concurrencies"):
        league(runs_of().assign(concurrency=np.nan, request_rate=2.0))


def test_the_picture_is_written(tmp_path):
    tables = {name: league(runs_of(loads=(1, 4))) for name in ("chat", "code")}
    order = ["none", "fixed:2", "vllm", "forecast", "oracle"]
    for path in save_league(tables, order, tmp_path / "heat", "an engine"):
        assert path.stat().st_size > 5000
