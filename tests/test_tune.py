import numpy as np
import pytest
from command_line import call, strict

from dspark_sim import Scenario, UserError
from dspark_sim.study import Objective, parameter_values, tune

SMALL = {
    "trace": "synth:fixed,in=16,out=24",
    "profile": "llama3.1-8b-h100",
    "requests": 64,
    "prefill": {"mode": "none"},
}
THROUGHPUT = Objective("throughput")


def test_a_range_in_one_argument_gives_the_values():
    assert parameter_values("threshold:0.2..0.4:0.1,on=survival") == {
        0.2: "threshold:0.2,on=survival",
        0.3: "threshold:0.3,on=survival",
        0.4: "threshold:0.4,on=survival",
    }
    assert list(parameter_values("fixed:1..8,gamma=8")) == [1, 2, 4, 8]
    for spec in ("threshold:0.5", "none", "fixed:1..2:1,gamma=3..4:1"):
        with pytest.raises(UserError, match="a range in one argument"):
            parameter_values(spec)


def test_the_grids_optimum_lies_in_the_interval_at_every_load():
    load = Scenario(**SMALL)
    arguments = (load, "fixed:1..7:1", THROUGHPUT, [1, 8])
    race = tune(*arguments, seeds=4)
    grid = tune(*arguments, seeds=4, exhaustive=True)
    assert race.table["load"].tolist() == ["1", "8"]
    for (_, found), (_, exact) in zip(race.table.iterrows(), grid.table.iterrows(), strict=True):
        assert found["low"] <= exact["best"] <= found["high"]
        assert found["simulations"] < exact["simulations"] == exact["grid_simulations"] == 28
    assert grid.values["n_seeds"].eq(4).all()
    best = grid.values.loc[grid.values.groupby("load", sort=False)["objective"].idxmax()]
    assert best["value"].tolist() == grid.table["best"].tolist()
    assert best["loss_pct"].tolist() == [0.0, 0.0]
    schedule = race.setting["vllm"]["num_speculative_tokens_per_batch_size"]
    assert schedule[0][0] == 1
    assert schedule[-1][1] == 8


def test_an_objective_over_all_loads_has_one_answer():
    tuned = tune(Scenario(**SMALL), "fixed:1..5:2", Objective("area"), [1, 8], seeds=2)
    assert tuned.table["load"].tolist() == ["all loads"]
    assert tuned.table["grid_simulations"].tolist() == [3 * 2 * 2]
    assert tuned.setting["vllm"] == {"num_speculative_tokens": int(tuned.table["best"].iloc[0])}


def test_goodput_is_tuned_over_rates():
    slo = {"goodput": {"tpot": 9.0}}
    tuned = tune(
        Scenario(**SMALL | slo), "fixed:1..5:4", Objective("goodput"), request_rate=[5.0], seeds=2
    )
    assert np.isfinite(tuned.table["objective"]).all()
    with pytest.raises(UserError, match="needs an SLO"):
        tune(Scenario(**SMALL), "fixed:1..5:4", Objective("goodput"), request_rate=[5.0])


@pytest.mark.parametrize("loads", [([], []), ([1], [1.0])])
def test_one_kind_of_load_is_needed(loads):
    with pytest.raises(UserError, match="concurrencies or request rates"):
        tune(Scenario(**SMALL), "fixed:1..3:1", THROUGHPUT, *loads)


def test_the_command_writes_a_table_and_a_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--profile", SMALL["profile"], "--trace", SMALL["trace"], "--requests", 64,
               "--prefill", "none", "--policy", "threshold:0.2..0.8:0.3", "--concurrency", "2,8",
               "--seeds", 3, "--jobs", 1]  # fmt: skip
    code, out, err = call("tune", *options, "--out", "t")
    assert (code, err) == (0, "")
    assert "of the whole grid" in out
    names = sorted(path.name for path in (tmp_path / "t").iterdir())
    assert names == ["tune.csv", "tune.png", "tune.svg"]
    answer = strict(call("tune", *options, "--json")[1])
    assert [row["load"] for row in answer["best"]] == ["2", "8"]
    assert "no static confidence threshold" in answer["setting"]["note"]
    code, _, err = call("tune", *options, "--objective", "speed")
    assert code == 2
    assert "unknown objective 'speed'" in err
