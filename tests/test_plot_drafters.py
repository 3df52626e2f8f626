import numpy as np
import pytest
from small_recording import GAMMA, recording_frame

from dspark_sim.acceptance import RecordedAcceptance
from dspark_sim.study.drafters import compare_drafters
from dspark_sim.study.figure import house_figure
from dspark_sim.study.plot_drafters import (
    FEW,
    Z95,
    plot_acceptance_lengths,
    plot_conditional,
    plot_thresholds,
    save_conditional,
    save_drafters,
    save_thresholds,
)

NAMES = ("tiny-dspark-markov-t1", "tiny-dflash-t0")


@pytest.fixture(scope="module")
def comparison():
    return compare_drafters([*NAMES, "geometric:3.5"])


@pytest.fixture(scope="module")
def silent():
    frame = recording_frame().assign(confidence=None)
    return compare_drafters([RecordedAcceptance("plain", frame, GAMMA)])


def containers(ax):
    return dict(zip([*NAMES, "geometric:3.5"], ax.containers, strict=True))


def points(line):
    """Return a line's coordinates; error bars keep them as objects."""
    return np.asarray(line.get_xydata(), dtype=float).T


def test_a_panel_shows_the_conditional_acceptance_of_one_category(comparison):
    with house_figure(8, 3) as figure:
        axes = plot_conditional(comparison, figure.subplots(1, 4))
        assert [ax.get_title(loc="left") for ax in axes] == ["chat", "code", "math", "all"]
        table = comparison.conditional.query("category == 'code' and recording == @NAMES[1]")
        shown = table[table["reached"] >= FEW]
        assert len(shown) < len(table)
        line, _, (bars,) = containers(axes[1])[NAMES[1]]
        x, y = points(line)
        np.testing.assert_allclose(y, shown["conditional"])
        np.testing.assert_array_equal(np.rint(x), shown["position"])
        spans = np.array([np.ptp(segment[:, 1]) for segment in bars.get_segments()])
        np.testing.assert_allclose(spans, 2 * Z95 * shown["standard_error"], rtol=1e-9)
        assert axes[0].get_ylabel() == "Conditional acceptance"
        assert axes[0].get_xlabel() == "Draft position"


def test_acceptance_lengths_stand_beside_each_other_in_their_category(comparison):
    with house_figure(6, 3) as figure:
        ax = plot_acceptance_lengths(comparison, figure.subplots())
        assert [tick.get_text() for tick in ax.get_xticklabels()] == ["chat", "code", "math", "all"]
        drawn = containers(ax)
        assert np.rint(points(drawn["geometric:3.5"][0])[0]).tolist() == [3]
        line = drawn[NAMES[0]][0]
        rows = comparison.acceptance_length.query("recording == @NAMES[0]")
        x, y = points(line)
        assert y.tolist() == rows["acceptance_length"].tolist()
        assert line.get_linestyle() == "None"
        assert np.rint(x).tolist() == [0, 1, 2, 3]
        assert len({points(bars[0])[0][-1] for bars in drawn.values()}) == 3
        assert "tokens/round, bonus included" in ax.get_ylabel()


def test_the_threshold_panels_show_accepted_and_rejected_drafts_and_their_share(comparison):
    with house_figure(8, 6) as figure:
        axes = plot_thresholds(comparison, figure.subplots(3, 4, sharey="row"))
        rows = comparison.thresholds.query("category == 'math' and recording == @NAMES[0]")
        for row, column, scale in zip(
            axes, ("accepted", "rejected", "acceptance_rate"), (1, 1, 100), strict=True
        ):
            np.testing.assert_allclose(row[2].lines[0].get_ydata(), scale * rows[column])
            highest = scale * comparison.thresholds[column].max()
            assert row[0].get_ylim()[0] == 0.0
            assert row[0].get_ylim()[1] > highest
        assert [ax.get_title(loc="left") for ax in axes[0]] == ["chat", "code", "math", "all"]
        assert axes[2, 0].get_xlabel() == "Confidence threshold"
        assert all("(" in row[0].get_ylabel() for row in axes)


def test_a_drafter_looks_the_same_in_every_panel_and_picture(comparison):
    with house_figure(8, 6) as figure:
        axes = plot_thresholds(comparison, figure.subplots(3, 4))
        lines = [axes[0, 0].lines[0], axes[2, 3].lines[0]]
    with house_figure(6, 3) as figure:
        lines.append(
            containers(plot_acceptance_lengths(comparison, figure.subplots()))[NAMES[0]][0]
        )
    assert {(line.get_color(), line.get_marker()) for line in lines} == {("#009E73", "s")}


def test_all_pictures_are_written_as_png_and_svg_that_do_not_vary(tmp_path):
    comparison = compare_drafters(["geometric:3.5"])
    first = save_drafters(comparison, tmp_path / "one")
    again = save_drafters(comparison, tmp_path / "two")
    assert [path.name for path in first] == [
        f"{name}.{kind}"
        for name in ("acceptance_length", "conditional", "thresholds")
        for kind in ("png", "svg")
    ]
    for one, two in zip(first, again, strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_without_confidences_the_picture_of_thresholds_is_left_out(silent, tmp_path):
    assert len(save_drafters(silent, tmp_path)) == 4
    assert not (tmp_path / "thresholds.png").exists()


def test_the_picture_of_thresholds_does_not_name_what_it_cannot_draw(tmp_path):
    frame = recording_frame()
    sources = [
        RecordedAcceptance("plain", frame.assign(confidence=None), GAMMA),
        RecordedAcceptance("sure", frame, GAMMA),
    ]
    (_, svg) = save_thresholds(compare_drafters(sources), tmp_path / "t.png")
    text = svg.read_text(encoding="utf-8")
    assert "<!-- sure -->" in text
    assert "<!-- plain -->" not in text


def test_the_legend_names_every_recording_outside_the_panels(tmp_path):
    law = "mix:math=math-dspark,chat=chat-dspark"
    (_, svg) = save_conditional(compare_drafters([NAMES[0], law]), tmp_path / "c.svg")
    text = svg.read_text(encoding="utf-8")
    for part in (NAMES[0], "mix:math=math-dspark,", "chat=chat-dspark", "bars: 95 % intervals"):
        assert f"<!-- {part}" in text
