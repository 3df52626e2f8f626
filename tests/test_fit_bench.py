"""From result files to a profile and a law: the published engine, known engines, the command."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from bench_files import EVEN, noisy, simulated, without_length, write
from command_line import call, strict, tree

from dspark_sim import Scenario
from dspark_sim.acceptance import load_acceptance
from dspark_sim.core import UserError
from dspark_sim.simulator import simulate
from dspark_sim.study import fit_bench, format_fit, write_fit
from dspark_sim.throughput import ImportOptions, load_profile

BLOG = (
    Path(__file__).parents[2] / "shared/reference/engines/vllm_blog_fig3_dsv4pro0813_tp8_b300.csv"
)
LOADS = (1, 8, 32, 64, 128)


@pytest.fixture(scope="module")
def blog():
    if not BLOG.is_file():
        pytest.skip("needs the figures of vLLM's blog in ../shared/reference/engines")
    return fit_bench([BLOG], hold_out=["k=5,6"])


@pytest.fixture(scope="module", params=["dsv4-flash-b300-tp4", "llama3.1-8b-h100"])
def known(request):
    """Return a profile and its noise-free results by (k, c)."""
    profile = load_profile(request.param)
    results = {(k, c): simulated(request.param, k, c) for k in (0, 1, 3, 5, 7) for c in LOADS}
    return profile, results


def law_lengths():
    survival = np.cumprod(load_acceptance(EVEN).rates)
    return 1.0 + np.cumsum(survival)


def fit_known(known, folder, seed, change=lambda result: result):
    profile, results = known
    rng = np.random.default_rng(seed)
    files = write(folder, {key: change(noisy(result, rng)) for key, result in results.items()})
    return profile, results, fit_bench(files, draft_lens={"k0-*": 0}, hold_out=["k=5"])


def test_vllms_published_engine_is_predicted_at_draft_lengths_it_was_not_fitted_on(blog):
    held = blog.held_out
    assert sorted(held["num_speculative_tokens"].unique()) == [5, 6]
    assert len(held) == 12
    assert sorted(blog.fitted["num_speculative_tokens"].unique()) == [0, 1, 3, 7]
    for column in ("error_pct", "output_error_pct"):
        assert held[column].abs().mean() <= 3.0
        assert held[column].abs().max() <= 6.0
    assert held["tok_s_user"].between(held["low_tok_s_user"], held["high_tok_s_user"]).all()


def test_the_published_points_held_out_are_said_to_lie_between_fitted_ones(blog):
    text = format_fit(blog)
    assert "k = 5, 6 is interpolation between the fitted k = 0, 1, 3, 7" in text
    assert "batch tokens = 6, 7, … 1792 (12 values) is interpolation" in text
    assert "no acceptance lengths are reported" in text
    assert "not known (--draft-len): adaptive_k7" in text


def test_the_published_points_held_out_are_not_looked_at(blog, tmp_path):
    table = pd.read_csv(BLOG)
    away = table["policy"].isin(["fixed_k5", "fixed_k6"])
    table.loc[away, ["interactivity_tok_s_user", "throughput_tok_s"]] *= 3.0
    table.to_csv(tmp_path / "wrong.csv", index=False)
    again = fit_bench([tmp_path / "wrong.csv"], hold_out=["k=5,6"])
    assert (again.fit.parameters == blog.fit.parameters).all()


@pytest.mark.parametrize("seed", range(2))
def test_a_known_engine_is_recovered_where_acceptance_lengths_are_reported(known, tmp_path, seed):
    profile, _, found = fit_known(known, tmp_path, seed)
    theta = found.fit.theta(found.fit.knots())
    truth = profile.verify_ms(theta["batch_tokens"]) + profile.overhead_ms
    assert np.median(np.abs(theta["ms"] / truth - 1.0)) <= 0.05
    lengths = found.fit.lengths()["acceptance_length"]
    assert np.abs(lengths / law_lengths() - 1.0).max() <= 0.03
    assert found.fit.lengths_known


@pytest.mark.parametrize("seed", range(2))
def test_a_known_engine_is_predicted_where_they_are_not(known, tmp_path, seed):
    _, results, found = fit_known(known, tmp_path, seed, without_length)
    assert not found.fit.lengths_known
    held = found.held_out
    truth = np.array([1000.0 / results[5, c]["mean_tpot_ms"] for c in held["concurrency"]])
    assert np.abs(held["fitted_tok_s_user"] / truth - 1.0).mean() <= 0.05
    assert ((truth > held["low_tok_s_user"]) & (truth < held["high_tok_s_user"])).all()
    lengths = found.fit.lengths()
    known_lengths = law_lengths()
    assert (lengths["low_length"] < known_lengths).all()
    assert (lengths["high_length"] > known_lengths).all()


def test_what_is_written_runs_and_returns_the_fitted_rates(known, tmp_path):
    _, _, found = fit_known(known, tmp_path, 0)
    folder = tmp_path / "fitted"
    write_fit(found, folder, ImportOptions("mine", {"gpu": "H100", "num_gpus": 2}))
    assert sorted(tree(folder)) == [
        "acceptance.toml", "draft.csv", "fit.json", "fit.png", "fit.svg", "profile.toml",
        *(["requests.csv"] if (folder / "requests.csv").exists() else []), "verify.csv",
    ]  # fmt: skip
    profile = load_profile(folder)
    assert (profile.name, profile.model) == ("mine", "known")
    assert (profile.gpu, profile.num_gpus) == ("H100", 2)
    run = Scenario(
        profile=str(folder),
        acceptance=f"{folder / 'acceptance.toml'}:request_sd=0,token_sd=0",
        policy="fixed:3",
        trace="synth:fixed,in=32,out=96",
        concurrency=32,
        requests=256,
        prefill={"mode": "none"},
    )
    summary = simulate(run).summary
    fitted = found.fitted.set_index(["num_speculative_tokens", "concurrency"]).loc[(3, 32)]
    assert summary["tok_s_user_mean"] == pytest.approx(fitted["fitted_tok_s_user"], rel=0.03)
    assert summary["acceptance_length"] == pytest.approx(
        found.fit.lengths()["acceptance_length"].iloc[2], rel=0.02
    )


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Return small result files in the current folder."""
    monkeypatch.chdir(tmp_path)
    rows = ["policy,concurrency,tok_s_user,output_tok_s,acceptance_length"]
    for k, length in ((0, 1.0), (1, 1.8), (3, 2.8), (5, 3.3)):
        for c in (1, 8, 64):
            rate = 1000 * length / (5 + 0.02 * c * (1 + k) + 0.5 * (k > 0))
            told = length if k else ""
            rows.append(f"fixed:{k},{c},{rate:.3f},{0.95 * c * rate:.3f},{told}")
    Path("results.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_the_command_prints_tables_and_writes_a_profile_and_a_law(files):
    code, out, err = call(
        "profile", "fit", "results.csv", "--out", "mine", "--hold-out", "k=3", "--set", "gpu=L4"
    )
    assert code == 0, err
    assert "fitted: 9 closed loops, tok/s/user error mean" in out
    assert "held out: 3 closed loops" in out
    assert "step time θ(M), ms, 95 % intervals" in out
    assert "acceptance, 95 % intervals, bonus included" in out
    assert "wrote mine/acceptance.toml" in err
    assert load_profile("./mine").provenance["source"].startswith("benchmark results results.csv")
    code, out, _ = call("profile", "show", "./mine")
    assert code == 0
    code, out, err = call(
        "sweep", "--profile", "./mine", "--acceptance", "mine/acceptance.toml", "--policy",
        "fixed:3", "--concurrency", "8", "--requests", "40", "--prefill", "none",
        "--trace", "synth:fixed,in=16,out=32",
    )  # fmt: skip
    assert code == 0, err


def test_the_command_prints_json_alone_on_demand(files):
    code, out, _ = call("profile", "fit", "results.csv", "--out", "mine", "--json")
    told = strict(out)
    assert code == 0
    assert {"points", "held_out", "acceptance", "theta", "alpha", "draft", "notes"} <= told.keys()
    assert told["fitted_errors"]["points"] == 12
    assert told["lengths_known"] is True
    assert strict((files / "mine/fit.json").read_text()) == told


def test_a_fit_writes_the_same_bytes_twice(files):
    for name in ("one", "two"):
        assert call("profile", "fit", "results.csv", "--out", name, "--name", "same")[0] == 0
    assert tree(files / "one") == tree(files / "two")


def test_an_earlier_fit_is_replaced_but_no_other_folder(files):
    for _ in range(2):
        assert call("profile", "fit", "results.csv", "--out", "mine")[0] == 0
    code, _, err = call("profile", "fit", "results.csv", "--out", ".")
    assert code == 2
    (files / "other").mkdir()
    (files / "other/notes.txt").write_text("mine")
    code, _, err = call("profile", "fit", "results.csv", "--out", "other")
    assert (code, err.count("\n")) == (2, 1)
    assert "other: holds other files" in err
    assert list(tree(files / "other")) == ["notes.txt"]


MISTAKES = {
    "hold-out value": (("--hold-out", "k=4"), "no result has 4; there are 0, 1, 3, 5"),
    "hold-out key": (("--hold-out", "policy=4"), "unknown key 'policy'", "allowed: c, k"),
    "hold-out form": (("--hold-out", "5"), "not of the form k=5,6 or c=64"),
    "hold-out all": (("--hold-out", "c=1,8,64"), "leaves nothing to fit"),
    "drafter": (("--drafter", "mtp"), "unknown drafter 'mtp'"),
    "draft length": (("--draft-len", "x=1.5"), "--draft-len x must be a whole number", "got 1.5"),
    "draft length form": (("--draft-len", "3"), "not of the form NAME=NUMBER"),
    "draft length name": (("--draft-len", "mtp=1"), "unknown result 'mtp'"),
    "length": (("--acceptance-length", "3=5"), "5 for 3 draft tokens is impossible"),
    "length key": (("--acceptance-length", "x=5"), "--acceptance-length", "'x'"),
    "key": (("--set", "gpus=2"), "unknown key 'gpus'"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_wrong_option_is_one_sentence(files, case):
    options, *words = MISTAKES[case]
    code, out, err = call("profile", "fit", "results.csv", "--out", "mine", *options)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    for word in words:
        assert word in err
    assert not (files / "mine").exists()


def test_extrapolation_is_called_so(files):
    found = fit_bench(["results.csv"], hold_out=["c=64"])
    notes = " ".join(found.notes())
    assert "c = 64 is extrapolation beyond the fitted c = 1, 8" in notes
    assert "extrapolation beyond the fitted batch tokens" in notes
    held = found.held_out
    assert held["tok_s_user"].between(held["low_tok_s_user"], held["high_tok_s_user"]).all()


def test_nothing_to_read_is_a_mistake(files):
    with pytest.raises(UserError, match="no result"):
        fit_bench([])
