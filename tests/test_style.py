import re

from hypothesis import given
from hypothesis import strategies as st

from dspark_sim.study.style import policy_style, policy_styles

BUILT_IN = (
    "none", "fixed:1", "fixed:3", "fixed:5", "fixed:7", "threshold:0.6", "dspark", "dspark-async",
    "vllm", "oracle",
)  # fmt: skip
OKABE_ITO = {
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
}  # fmt: skip


def test_every_built_in_policy_has_a_colour_and_a_marker_of_its_own():
    styles = policy_styles(BUILT_IN)
    assert len({style.colour for style in styles.values()}) == len(BUILT_IN)
    assert len({style.marker for style in styles.values()}) == len(BUILT_IN)


def test_the_colours_are_okabe_itos_with_shades_for_fixed_lengths_and_grey_for_the_oracle():
    colours = {policy: style.colour for policy, style in policy_styles(BUILT_IN).items()}
    outside = {policy for policy, colour in colours.items() if colour not in OKABE_ITO}
    assert outside == {"fixed:1", "fixed:7", "oracle"}


def test_the_oracle_is_dashed_and_says_that_it_is_not_lossless():
    for name in ("oracle", "oracle:lag=1"):
        style = policy_style(name)
        assert style.linestyle == "--"
        assert style.label == f"{name} (not lossless)"


def test_a_longer_fixed_length_is_darker():
    def brightness(colour):
        return sum(bytes.fromhex(colour[1:]))

    shades = [brightness(policy_style(f"fixed:{k}").colour) for k in range(1, 16)]
    assert shades == sorted(shades, reverse=True)
    assert len(set(shades)) >= 12


def test_the_company_does_not_change_a_known_policy():
    assert policy_styles(["mine", "vllm", "other:3"])["vllm"] == policy_style("vllm")


@given(st.lists(st.text(max_size=8), max_size=40, unique=True))
def test_policies_in_one_picture_look_different_and_always_the_same(names):
    styles = policy_styles(names)
    unknown = [styles[name] for name in names if ":" not in name]
    assert len({(s.colour, s.marker, s.linestyle) for s in unknown}) == len(unknown)
    assert styles == policy_styles(names)
    assert all(re.fullmatch("#[0-9A-F]{6}", style.colour) for style in styles.values())


def test_a_look_that_is_taken_moves_on_by_one_place():
    names = [f"rule{index}" for index in range(60)]
    hashed = {(policy_style(n).colour, policy_style(n).marker) for n in names}
    shown = {(s.colour, s.marker) for s in policy_styles(names).values()}
    assert len(hashed) < len(shown) == 60
