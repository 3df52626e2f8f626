import math

import pandas as pd
import pytest

from dspark_sim.study.drafter_style import (
    DRAFTERS,
    LINES,
    drafter_colour,
    drafter_of,
    drafter_styles,
)


def recordings(*rows):
    table = pd.DataFrame(rows, columns=["drafter", "target", "temperature"])
    table.insert(0, "recording", [f"r{index}" for index in range(len(table))])
    return table


@pytest.mark.parametrize(
    ("name", "drafter"),
    [
        ("tiny-dspark-markov-t1", "dspark-markov"),
        ("smollm2-135m-dspark-markov-1layer-t0.6", "dspark-markov-1layer"),
        ("chat-dflash:noise=1", "dflash"),
        ("golden-kimi-k3-dspark", "dspark"),
        ("geometric:3.5", "geometric:3.5"),
    ],
)
def test_a_name_tells_of_its_drafter(name, drafter):
    assert drafter_of(name) == drafter


def test_drafters_differ_in_colour_and_marker_but_for_the_papers_name_of_one():
    looks = [look for name, look in DRAFTERS.items() if name != "dspark"]
    assert (
        len({colour for colour, _ in looks}) == len({marker for _, marker in looks}) == len(looks)
    )
    assert DRAFTERS["dspark"] == DRAFTERS["dspark-markov"]


def test_colour_and_marker_do_not_depend_on_the_company():
    alone = drafter_styles(recordings(("eagle3", "tiny", 0.0)))["r0"]
    both = drafter_styles(recordings(("dflash", "tiny", 1.0), ("eagle3", "tiny", 0.0)))["r1"]
    assert (alone.colour, alone.marker) == (both.colour, both.marker) == DRAFTERS["eagle3"]
    assert drafter_colour("medusa") == drafter_colour("medusa")
    assert drafter_colour("medusa") not in DRAFTERS.values()


def test_temperatures_and_targets_are_told_apart_and_alike_for_every_drafter():
    kinds = [(t, c) for t in ("smollm2-135m", "tiny") for c in (0.0, 0.6, 1.0)]
    rows = [(drafter, *kind) for drafter in ("dflash", "eagle3") for kind in kinds]
    styles = list(drafter_styles(recordings(*rows)).values())
    assert len(set(styles)) == 12
    lines = [(style.linestyle, style.fill) for style in styles]
    assert lines[:6] == lines[6:]
    assert sorted(lines[:6], key=LINES.index) == list(LINES)


def test_the_hottest_of_a_known_target_has_the_solid_line():
    rows = [("dspark", "", math.nan), ("dflash", "tiny", 0.0), ("dflash", "tiny", 1.0)]
    styles = drafter_styles(recordings(*rows))
    assert [styles[f"r{index}"].fill for index in range(3)] == ["left", "none", "full"]


def test_recordings_that_agree_in_everything_still_differ_while_lines_last():
    styles = drafter_styles(recordings(*[("dflash", "tiny", 1.0)] * 7))
    assert len(set(styles.values())) == len(LINES)


def test_a_hollow_marker_is_white_and_a_half_one_half_white():
    row = recordings(("dflash", "tiny", 1.0), ("dflash", "tiny", 0.5), ("dflash", "tiny", 0.0))
    full, hollow, half = (style.look() for style in drafter_styles(row).values())
    assert (full["markerfacecolor"], full["fillstyle"]) == ("#D55E00", "full")
    assert (hollow["markerfacecolor"], hollow["fillstyle"]) == ("white", "full")
    assert (half["markerfacecoloralt"], half["fillstyle"]) == ("white", "left")
