import matplotlib as mpl
import numpy as np
import pytest

from dspark_sim.study.figure import house_figure, label_points, mark_values, write_figure


def boxes(ax):
    return [text.get_window_extent() for text in ax.texts]


def test_the_users_matplotlib_settings_are_ignored_and_restored():
    with mpl.rc_context({"font.size": 30.0}):
        with house_figure(4, 3) as figure:
            size = figure.subplots().xaxis.label.get_fontsize()
        assert mpl.rcParams["font.size"] == 30.0
    assert size == 9.0


def test_settings_are_restored_when_drawing_fails():
    before = dict(mpl.rcParams)
    with pytest.raises(RuntimeError), house_figure(4, 3):
        raise RuntimeError
    assert dict(mpl.rcParams) == before


def test_both_formats_are_written_whatever_the_suffix(tmp_path):
    with house_figure(2, 2) as figure:
        for name in ("a", "b.png", "c.svg", "v1.5"):
            write_figure(figure, tmp_path / "new" / name)
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {
        f"{stem}.{kind}" for stem in ("a", "b", "c", "v1.5") for kind in ("png", "svg")
    }


def test_labels_do_not_overlap_and_close_ones_are_left_out():
    x = np.array([1.0, 1.001, 2.0, 3.0])
    with house_figure(4, 3) as figure:
        ax = figure.subplots()
        ax.plot(x, 10 / x)
        label_points(ax, x, 10 / x, ["256", "128", "64", "32"])
        texts, extents = [text.get_text() for text in ax.texts], boxes(ax)
    assert texts == ["256", "64", "32"]
    for index, box in enumerate(extents):
        assert not any(box.overlaps(other) for other in extents[index + 1 :])


def test_a_label_keeps_off_the_lines():
    with house_figure(4, 3) as figure:
        ax = figure.subplots()
        ax.plot([0, 2], [0, 2])
        label_points(ax, np.array([1.0]), np.array([1.0]), ["64"])
        box = boxes(ax)[0]
        diagonal = ax.transData.transform(np.column_stack([np.linspace(0, 2, 500)] * 2))
    assert not box.count_contains(diagonal)


@pytest.mark.parametrize(
    ("values", "scale", "ticks"),
    [
        ([1, 2, 4, 8, 16, 32, 64, 128, 256], "log", "1 2 4 8 16 32 64 128 256"),
        ([1, 2, 3, 4], "linear", "1 2 3 4"),
        ([0, 1, 100], "linear", "0 100"),
        ([1, 100, 101, 102, 200], "log", "1 100 200"),
        ([4], "linear", "4"),
        ([], "linear", ""),
    ],
)
def test_ticks_stand_at_the_measured_values_that_leave_room(values, scale, ticks):
    with house_figure(4, 3) as figure:
        ax = figure.subplots()
        mark_values(ax, np.array(values, dtype=float))
        assert ax.get_xscale() == scale
        assert [label.get_text() for label in ax.get_xticklabels()] == ticks.split()
