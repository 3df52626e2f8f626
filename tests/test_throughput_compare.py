import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from test_throughput_profile import profile, table

from dspark_sim.core import UserError
from dspark_sim.throughput import compare_profiles, load_profile, plot_profiles
from dspark_sim.throughput.plot import Line, draw_profile
from dspark_sim.throughput.summary import find_dips

PAIR = ("dsv4-flash-b300-tp4", "llama3.1-8b-h100")


def measured(**changes):
    rows = table([1, 8, 16], [4.0, 3.0, 6.0], p10_ms=[3.5, 2.9, 5.0], p90_ms=[5.0, 3.4, 8.0])
    return profile(verify=rows, **changes)


def test_two_profiles_are_drawn_over_each_other_the_same_every_time(tmp_path):
    pair = [load_profile(name) for name in PAIR]
    one = plot_profiles(pair, tmp_path / "one.png")
    two = plot_profiles(pair, tmp_path / "two")
    assert [path.name for path in one] == ["one.png", "one.svg"]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_residuals_are_drawn_when_asked_for_and_the_roofline_when_it_is_there(tmp_path):
    rows = table([1, 8, 16], [4.0, 5.0, 6.0], roofline_ms=[3.0, np.nan, 3.0])
    bare, with_roofline = profile(), profile(name="other", verify=rows)
    sizes = {
        "plain": plot_profiles([bare], tmp_path / "a")[0],
        "more": plot_profiles([bare, with_roofline], tmp_path / "b", additive=True)[0],
    }
    assert sizes["more"].stat().st_size > 1.3 * sizes["plain"].stat().st_size


@pytest.mark.parametrize("number", [0, 8])
def test_too_few_or_too_many_profiles_are_refused(tmp_path, number):
    several = [profile(name=str(index)) for index in range(number)]
    with pytest.raises(UserError, match="1 to 7 profiles with different names can be compared"):
        plot_profiles(several, tmp_path / "a")
    with pytest.raises(UserError, match="got toy, toy"):
        plot_profiles([profile(), profile()], tmp_path / "a")


def test_the_table_of_a_comparison_has_one_column_per_profile():
    small = profile(name="small", overhead_ms=0.0)
    large = load_profile("llama3.1-8b-h100")
    compared = compare_profiles([small, large], 4)
    assert compared["batch_tokens"].tolist()[-1] == 8192
    assert compared["small"].iloc[:2].tolist() == pytest.approx(small.step_ms(4, [1, 2], 0, 4, 3))
    assert compared["small"].iloc[7:].isna().all()


def test_the_band_follows_the_staircase_from_p10_to_p90():
    left, right = draw_profile(measured(), Figure())
    low, high = left.collections[0].get_datalim(left.transData).intervaly
    assert (low, high) == pytest.approx((2.9 + 0.5, 8.0 + 0.5))
    low, high = right.collections[0].get_datalim(right.transData).intervaly
    assert (low, high) == pytest.approx((1000 / 8.5, 1000 / 3.4))


def test_without_a_spread_no_band_is_drawn():
    left, _ = draw_profile(profile(), Figure())
    assert "p10 to p90" not in left.get_legend_handles_labels()[1]


def test_dips_are_marked_and_the_cliff_is_none():
    assert find_dips(measured()).tolist() == [8]
    assert find_dips(load_profile("dsv4-flash-b300-tp4")).tolist() == [176, 352, 512, 688]
    assert find_dips(profile()).tolist() == []
    left, _ = draw_profile(measured(), Figure())
    marks = [line for line in left.lines if str(line.get_label()).startswith("dip")]
    assert marks[0].get_xdata().tolist() == [8]


def test_a_number_of_requests_that_adds_nothing_is_not_drawn():
    left, _ = draw_profile(load_profile("qwen3.5-35b-a3b-h20"), Figure(), num_requests=32)
    assert not any(label.startswith("the same") for label in left.get_legend_handles_labels()[1])


@pytest.mark.parametrize("lookup", ["floor", "linear", "captured"])
def test_what_is_drawn_is_what_is_looked_up(lookup):
    sizes = pd.DataFrame({"batch_tokens": [1, 8, 16, 32, 64], "ms": [4.0, 5.0, 6.0, 30.0, 40.0]})
    toy = profile(verify=sizes, lookup=lookup, capture_limit=16 if lookup == "captured" else None)
    line = Line(toy, 0, 0, as_rate=False)
    covered = np.unique(np.concatenate(list(line.pieces().values())))
    assert set(sizes["batch_tokens"]) <= set(covered.tolist())
    assert line.value(covered).tolist() == toy.step_ms(0, covered).tolist()
