from matplotlib.figure import Figure
from test_throughput_profile import profile, table

from dspark_sim.throughput import load_profile, plot_profile
from dspark_sim.throughput.plot import draw_profile


def test_a_picture_is_a_png_and_an_svg_beside_each_other(tmp_path):
    written = plot_profile(profile(), tmp_path / "sub" / "llama3.1", num_requests=4)
    assert [path.name for path in written] == ["llama3.1.png", "llama3.1.svg"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in plot_profile(profile(), tmp_path / "a.svg")] == ["a.png", "a.svg"]


def test_the_same_profile_gives_the_same_bytes(tmp_path):
    one = plot_profile(load_profile("dsv4-flash-b300-tp4"), tmp_path / "one", num_requests=64)
    two = plot_profile(load_profile("dsv4-flash-b300-tp4"), tmp_path / "two", num_requests=64)
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_the_cliff_is_marked_with_both_costs():
    left, _ = draw_profile(load_profile("dsv4-flash-b300-tp4"), Figure())
    texts = [text.get_text() for text in left.texts]
    assert any("104.5 ms instead of 20.6 (5.1×)" in text for text in texts)


def test_without_eager_points_or_captured_lookup_no_cliff_is_drawn():
    for toy in (profile(lookup="floor"), profile(verify=table([1, 16], [4.0, 6.0]))):
        left, right = draw_profile(toy, Figure(), num_requests=4)
        assert not left.texts
        assert not right.texts


def test_the_staircase_passes_through_the_points_of_the_table():
    left, right = draw_profile(profile(), Figure())
    for axes, cost in ((left, [4.5, 5.5, 6.5]), (right, [1000 / 4.5, 1000 / 5.5, 1000 / 6.5])):
        line = axes.lines[0]
        at = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
        assert [at[1], at[8], at[16]] == cost
        assert line.get_drawstyle() == "steps-pre"


def test_a_line_for_a_number_of_requests_adds_draft_and_request_cost():
    left, _ = draw_profile(profile(), Figure(), num_requests=8)
    labels = left.get_legend_handles_labels()[1]
    assert "the same + draft[R = 8, 3 tokens] + α(R = 8)" in labels
