import numpy as np
import pandas as pd
import pytest

from dspark_sim.study import fit_bench
from dspark_sim.study.figure import house_figure
from dspark_sim.study.plot_fit import plot_rates, plot_theta, save_fit


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    rows = [
        {"policy": f"fixed:{k}", "concurrency": c, "tok_s_user": 1000 * (1 + 0.5 * k) / ms}
        for k in (0, 1, 3)
        for c in (1, 8, 64)
        for ms in [5 + 0.02 * c * (1 + k)]
    ]
    path = tmp_path_factory.mktemp("results") / "r.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return fit_bench([path], hold_out=["k=1"])


def test_every_draft_length_has_a_line_and_held_out_points_are_hollow(found):
    with house_figure(8, 6) as figure:
        above, below = figure.subplots(2, 1)
        plot_rates(found, above, below)
        labels = above.get_legend_handles_labels()[1]
        assert labels == ["k = 0", "k = 1, held out", "k = 3"]
        hollow = [line for line in above.lines if line.get_markerfacecolor() == "white"]
        assert len(hollow) == 1
        assert hollow[0].get_ydata() == pytest.approx(found.held_out["tok_s_user"].to_numpy())
        assert above.get_ylabel().startswith("tok/s/user")
        assert below.get_ylabel() == "error (%)"
        assert below.get_xlabel() == "Concurrency c (requests in flight)"


def test_the_step_time_lies_within_its_interval_and_near_the_results(found):
    with house_figure(8, 6) as figure:
        axes = plot_theta(found, figure.subplots())
        line, results = axes.lines
        assert (np.diff(line.get_ydata()) >= -1e-9).all()
        assert len(results.get_xdata()) == len(found.fitted)
        nearest = np.interp(results.get_xdata(), line.get_xdata(), line.get_ydata())
        assert results.get_ydata() == pytest.approx(nearest, rel=0.15)
        band = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert band.min() < line.get_ydata().min() < line.get_ydata().max() < band.max()
        assert axes.get_ylabel() == "Step time (ms)"
        assert "M = c (1 + k)" in axes.get_xlabel()


def test_png_and_svg_are_written_with_the_errors_in_the_title(found, tmp_path):
    written = save_fit(found, tmp_path / "fit.png", "mine")
    assert [path.name for path in written] == ["fit.png", "fit.svg"]
    assert all(path.stat().st_size > 10_000 for path in written)
