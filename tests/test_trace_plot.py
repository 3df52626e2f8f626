"""The picture of a trace."""

import numpy as np
import pytest

from dspark_sim.trace import load_trace, plot_trace, synthesize
from dspark_sim.trace.plot import draw_trace


@pytest.mark.parametrize("name", ["t.png", "t.svg", "t", "v1.5"])
def test_a_png_and_an_svg_are_written_beside_each_other(tmp_path, name):
    png, svg = plot_trace(synthesize("chat", 50), tmp_path / name)
    assert {png, svg} == set(tmp_path.iterdir())
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in svg.read_bytes()
    assert png.stem == svg.stem == name.removesuffix(".png").removesuffix(".svg")


def test_the_same_trace_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        plot_trace(synthesize("chat", 50), tmp_path / name)
    for suffix in (".png", ".svg"):
        first, second = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("a", "b"))
        assert first == second


def test_every_axis_says_its_unit():
    arrivals, prompts, outputs = draw_trace(synthesize("chat", 50)).axes
    assert (arrivals.get_xlabel(), arrivals.get_ylabel()) == (
        "Arrival time (s)",
        "Arrivals (requests/s)",
    )
    for axes, what in ((prompts, "Prompt"), (outputs, "Output")):
        assert axes.get_xlabel() == f"{what} length (tokens)"
        assert axes.get_ylabel() == "Requests (% per bar)"
        assert axes.get_xscale() == "log"


def test_every_request_is_in_the_bars():
    trace = synthesize("code", 777, seed=3)
    arrivals, prompts, outputs = draw_trace(trace).axes
    rates, edges, _ = arrivals.patches[0].get_data()
    assert (rates * np.diff(edges)).sum() == pytest.approx(777)
    for axes in (prompts, outputs):
        assert axes.patches[0].get_data().values.sum() == pytest.approx(100)


@pytest.mark.parametrize(
    "spec",
    [
        "synth:fixed,in=1,out=1,rate=inf",
        "synth:fixed,in=1,out=1,rate=1000000",
        "synth:chat,rate=0.001",
        "synth:lognormal,in=1,out=100000,in_sigma=3,out_sigma=3",
    ],
)
@pytest.mark.parametrize("n", [1, 2, 300])
def test_extreme_traces_can_be_drawn(tmp_path, spec, n):
    assert plot_trace(load_trace(spec, n), tmp_path / "t.png")[0].is_file()
