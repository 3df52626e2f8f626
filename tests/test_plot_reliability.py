from dataclasses import replace

import pytest

from dspark_sim.acceptance import load_acceptance
from dspark_sim.acceptance.calibration import draw_blocks, fit_held_out
from dspark_sim.acceptance.reliability import reliability_table
from dspark_sim.study.figure import house_figure
from dspark_sim.study.plot_reliability import plot_reliability, save_reliability


@pytest.fixture(scope="module")
def fitted():
    law = replace(load_acceptance("chat-dspark"), confidence_scale=1.8)
    scaling, test = fit_held_out(draw_blocks(law, 60, 16))
    return test, scaling


def test_a_panel_shows_the_diagonal_and_the_bins_before_and_after(fitted):
    test, scaling = fitted
    with house_figure(6, 3) as figure:
        axes = plot_reliability(test, scaling, figure.subplots(1, 2), (1, 3))
        for ax, position in zip(axes, (1, 3), strict=True):
            assert ax.get_title(loc="left").startswith(f"Position {position}: T = ")
            _, before, after = ax.lines
            for line, values in (
                (before, test.confidence),
                (after, scaling.apply(test.confidence)),
            ):
                bins = reliability_table(values, test.accepted, position).query("count >= 10")
                assert line.get_xydata().tolist() == bins[["predicted", "observed"]].values.tolist()
            texts = [text.get_text() for text in ax.get_legend().get_texts()]
            assert [text.split()[-1] for text in texts] == ["before", "after"]


def test_png_and_svg_are_written_and_do_not_vary(fitted, tmp_path):
    first = save_reliability(*fitted, tmp_path / "a.png", title="chat")
    again = save_reliability(*fitted, tmp_path / "b.svg", title="chat")
    assert [path.name for path in first] == ["a.png", "a.svg"]
    for one, two in zip(first, again, strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_positions_beyond_the_block_are_left_out(tmp_path):
    scaling, test = fit_held_out(draw_blocks(load_acceptance("chat-dspark"), 10, 8, draft_len=2))
    assert all(path.stat().st_size > 0 for path in save_reliability(test, scaling, tmp_path / "r"))
