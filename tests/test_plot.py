import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from fake_sweep import CONCURRENCY, POLICIES, make_sweep
from matplotlib.figure import Figure

from dspark_sim.study import plot
from dspark_sim.study.pareto import frontier
from dspark_sim.study.style import policy_style

SAVERS = (plot.save_pareto, plot.save_load, plot.save_latency, plot.save_waste)


@pytest.fixture(scope="module")
def runs():
    return make_sweep()


def line(ax, label):
    return next(line for line in ax.lines if line.get_label() == label)


def legend_texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_a_pareto_curve_is_the_policys_own_frontier(runs):
    ax = plot.plot_pareto(runs, Figure().subplots())
    points = frontier(runs)
    for policy in ("fixed:7", "vllm"):
        own = points[points["policy"] == policy]
        np.testing.assert_allclose(line(ax, policy).get_xdata(), own["tok_s_user"])
        np.testing.assert_allclose(line(ax, policy).get_ydata(), own["tok_s_gpu"])


def test_pareto_axes_start_at_zero_and_say_their_units(runs):
    ax = plot.plot_pareto(runs, Figure().subplots(), title="chat")
    assert ax.get_xlabel() == "Interactivity (tok/s/user)"
    assert ax.get_ylabel() == "Output throughput per GPU (tok/s/GPU)"
    assert (ax.get_xlim()[0], ax.get_ylim()[0]) == (0.0, 0.0)
    assert ax.get_title(loc="left") == "chat"


def test_the_legend_names_every_policy_and_labels_the_oracle(runs):
    ax = plot.plot_pareto(runs, Figure().subplots())
    named = [*POLICIES[:-1], "oracle (not lossless)", "joint frontier\n(labels: concurrency)"]
    assert legend_texts(ax) == named


def test_points_are_labelled_with_loads_of_the_joint_frontier(runs):
    ax = plot.plot_pareto(runs, Figure().subplots())
    labels = [text.get_text() for text in ax.texts]
    assert "256" in labels
    assert set(labels) <= {f"{load}" for load in CONCURRENCY}
    assert len(labels) == len(set(labels))


def test_a_policy_looks_the_same_in_every_picture(runs):
    few = runs[runs["policy"].isin(["vllm", "none"])]
    looks = set()
    for shown in (runs, few):
        pareto = plot.plot_pareto(shown, Figure().subplots())
        waste = plot.plot_waste(shown, Figure().subplots())
        for ax in (pareto, waste):
            looks.add((line(ax, "vllm").get_color(), line(ax, "vllm").get_marker()))
    style = policy_style("vllm")
    assert looks == {(style.colour, style.marker)}


def test_seeds_give_error_bars_and_bands_and_one_seed_gives_none(runs):
    one = runs[runs["seed"] == 0]
    counts = {}
    for name, shown in (("three", runs), ("one", one)):
        pareto = plot.plot_pareto(shown, Figure().subplots())
        waste = plot.plot_waste(shown, Figure().subplots())
        counts[name] = (len(pareto.containers), len(waste.collections) > 0)
    assert counts == {"three": (len(POLICIES), True), "one": (0, False)}


def test_the_load_picture_has_the_papers_two_panels(runs):
    left, right = plot.plot_load(runs, Figure().subplots(1, 2))
    assert left.get_ylabel() == "Output throughput per GPU (tok/s/GPU)"
    assert right.get_ylabel() == "Verify budget (tokens/request/step)"
    assert left.get_xlabel() == right.get_xlabel() == "Concurrency"
    assert set(line(right, "fixed:3").get_ydata()) == {4.0}
    assert [tick.get_text() for tick in left.get_xticklabels()] == [f"{c}" for c in CONCURRENCY]


def test_the_latency_picture_has_a_row_per_metric_and_a_column_per_percentile(runs):
    axes = plot.plot_latency(runs, Figure().subplots(3, 3, sharex=True, sharey="row"), "chat")
    assert [ax.get_title() for ax in axes[0]] == ["P50", "P90", "P99"]
    assert [ax.get_ylabel() for ax in axes[:, 0]] == [
        "TTFT (ms)", "TPOT (ms)", "Inter-chunk latency (ms)",
    ]  # fmt: skip
    expected = runs[(runs["policy"] == "vllm") & (runs["concurrency"] == 64)]["tpot_p90_ms"].mean()
    assert line(axes[1, 1], "vllm").get_ydata()[6] == pytest.approx(expected)


def test_a_metric_that_was_not_measured_says_so(runs):
    blank = runs.assign(**{f"ttft_{p}_ms": np.nan for p in ("p50", "p90", "p99")})
    axes = plot.plot_latency(blank, Figure().subplots(3, 3, sharex=True, sharey="row"))
    assert [[text.get_text() for text in ax.texts] for ax in axes[0]] == [["not measured"]] * 3


def test_waste_is_shown_in_percent_of_target_tokens(runs):
    ax = plot.plot_waste(runs, Figure().subplots())
    expected = 100 * runs[runs["policy"] == "fixed:7"]["wasted_fraction"].mean()
    assert np.mean(line(ax, "fixed:7").get_ydata()) == pytest.approx(expected)
    assert set(line(ax, "none").get_ydata()) == {0.0}


@pytest.mark.parametrize(
    ("concurrency", "rate", "name"),
    [
        ([4, 4], [np.nan] * 2, "Concurrency"),
        ([np.nan] * 2, [2.5, 5], "Request rate (req/s)"),
        ([4, np.nan], [np.nan, 2.5], "Load"),
    ],
)
def test_the_load_axis_is_named_after_what_was_varied(concurrency, rate, name):
    runs = make_sweep(policies=["vllm"], concurrency=[1, 2], seeds=1)
    runs = runs.assign(concurrency=concurrency, request_rate=rate, seed=[0, 1])
    assert plot.plot_waste(runs, Figure().subplots()).get_xlabel() == name


def test_a_run_without_a_stated_load_is_on_the_pareto_picture_only():
    runs = make_sweep(policies=["vllm"], concurrency=[8, 16], seeds=1)
    runs.loc[0, "concurrency"] = np.nan
    assert len(line(plot.plot_pareto(runs, Figure().subplots()), "vllm").get_xdata()) == 2
    assert len(line(plot.plot_waste(runs, Figure().subplots()), "vllm").get_xdata()) == 1


@pytest.mark.parametrize("save", SAVERS)
def test_saving_twice_gives_identical_bytes(runs, save, tmp_path):
    few = runs[runs["policy"].isin(["vllm", "fixed:3"])]
    first = save(few, tmp_path / "first", title="chat")
    second = save(few, tmp_path / "second.png", title="chat")
    assert [path.suffix for path in first] == [".png", ".svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.parametrize("save", SAVERS)
def test_a_single_run_can_be_drawn(save, tmp_path):
    runs = make_sweep(policies=["vllm"], concurrency=[4], seeds=1)
    assert all(path.stat().st_size > 0 for path in save(runs, tmp_path / "one"))


def test_many_policies_fit_the_picture(tmp_path):
    some = make_sweep(policies=["vllm"], concurrency=[1, 64], seeds=1)
    runs = pd.concat([some.assign(policy=f"threshold:{i / 40}") for i in range(40)])
    assert plot.save_pareto(runs, tmp_path / "many")[0].stat().st_size > 0


def test_drawing_leaves_matplotlibs_settings_alone(runs, tmp_path):
    before = dict(mpl.rcParams)
    plot.save_waste(runs[runs["policy"] == "vllm"], tmp_path / "waste")
    assert dict(mpl.rcParams) == before


def test_importing_the_pictures_does_not_import_matplotlib():
    code = "import sys, dspark_sim.study.plot; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
