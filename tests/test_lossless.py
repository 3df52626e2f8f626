import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_sim.core import UserError
from dspark_sim.policies import POLICIES, is_lossless
from dspark_sim.study.lossless import (
    BUILT_IN,
    TOLERANCE,
    check_lossless,
    format_lossless,
    output_distribution,
    tv_bias,
)
from dspark_sim.study.worlds import (
    SHAPES,
    appendix_a,
    default_worlds,
    random_world,
    with_greedy_drafts,
    with_token_confidence,
)

LEARNING = ("smartspec", "dsd-online", "sgl-ema", "gate-off", "sticky-off")
SEARCHES = ("dspark-async:lag=0", "vllm:lag=0")
KEPT = tuple(spec for spec in BUILT_IN if is_lossless(spec))

RULES = '''
import numpy as np


def look_ahead(view):
    """Verify one token only if the next one is worth its while."""
    return (view.confidence[:, 1] >= 0.5).astype(int) * view.draft_len


class Neighbour:
    """Trust a request by the confidence of the one beside it, and draft one token less."""

    def draft_lengths(self, view):
        return np.full(view.num_requests, view.max_draft_len - 1)

    def verify_lengths(self, view):
        trusted = np.roll(view.confidence[:, 0], 1) >= 0.5
        return np.where(trusted, view.draft_len, 0)


class Growing:
    """Remember between calls: one more token each time."""

    calls = 0

    def verify_lengths(self, view):
        self.calls += 1
        return np.minimum(self.calls, view.draft_len)


def too_many(view):
    return view.draft_len + 1
'''


@pytest.fixture
def rules(tmp_path, monkeypatch):
    (tmp_path / "lossless_rules.py").write_text(RULES)
    monkeypatch.syspath_prepend(tmp_path)
    return "lossless_rules:"


@pytest.fixture(scope="module")
def rows():
    return check_lossless().set_index("policy")


def first_token(distribution):
    return distribution.sum(axis=tuple(range(1, distribution.ndim)))


def deterministic(world):
    """Temperature 0: the target and the drafter say their likeliest token."""
    greedy = with_greedy_drafts(world)
    requests = tuple(
        replace(t, target=tuple(np.eye(p.shape[-1])[p.argmax(axis=-1)] for p in t.target))
        for t in greedy.requests
    )
    return replace(greedy, requests=requests)


def test_every_built_in_policy_is_checked():
    assert {spec.partition(":")[0] for spec in BUILT_IN} == set(POLICIES)
    for source in ("online-sts", "platt", "ema"):
        assert any(spec.endswith(f"conf={source}") for spec in BUILT_IN)


@pytest.mark.parametrize("spec", BUILT_IN)
def test_what_a_policy_claims_is_what_enumeration_finds(spec, rows):
    assert rows.lossless[spec] == is_lossless(spec)
    assert (rows.tv_bias[spec] == 0.0) == is_lossless(spec)


@pytest.mark.parametrize("spec", SEARCHES)
def test_a_live_search_without_the_stop_has_the_bias_of_appendix_a(spec, rows):
    assert first_token(output_distribution(spec, appendix_a())) == pytest.approx([0.85, 0.15])
    assert rows.appendix_a[spec] == pytest.approx(0.15, abs=1e-12)


@pytest.mark.parametrize("spec", KEPT)
def test_a_lossless_policy_answers_appendix_a_with_the_targets_distribution(spec):
    output = output_distribution(spec, appendix_a())
    assert first_token(output) == pytest.approx([0.7, 0.3], abs=TOLERANCE)


def test_the_oracle_keeps_only_drafts_it_likes():
    # After A two tokens pay, if both are accepted: odds 0.9. Else the target speaks for itself.
    token_a = 0.5 * (0.9 + 0.1 * 0.7) + 0.5 * 0.7
    output = output_distribution("oracle", appendix_a())
    assert first_token(output) == pytest.approx([token_a, 1 - token_a])


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("spec", [*SEARCHES, "oracle"])
def test_random_worlds_find_the_bias_without_being_told_where(spec, seed):
    row = check_lossless([spec], default_worlds(seed)[1:]).iloc[0]
    assert not row.lossless
    assert row.tv_bias > 0.01
    assert row.world.startswith("random-")
    assert math.isnan(row.appendix_a)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(SHAPES), st.sampled_from(KEPT))
def test_a_lossless_policy_is_so_in_any_world(seed, shape, spec):
    world = random_world(np.random.default_rng(seed), "any", shape)
    assert output_distribution(spec, world).sum() == pytest.approx(1.0)
    assert tv_bias(spec, world) <= TOLERANCE


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(SHAPES), st.sampled_from(BUILT_IN))
def test_at_temperature_0_no_policy_does_harm(seed, shape, spec):
    world = deterministic(random_world(np.random.default_rng(seed), "any", shape))
    assert tv_bias(spec, world) <= TOLERANCE


def test_greedy_drafts_make_a_live_search_harmless():
    rows = check_lossless(setting="greedy")
    assert rows.policy[~rows.lossless].tolist() == ["oracle"]


def test_confidence_of_the_sampled_token_is_harmless_where_live_confidence_is_not_read():
    rows = check_lossless(setting="token-confidence")
    blind = {"none", "fixed", "k-table", "atom", *LEARNING}
    kept = rows.policy[rows.lossless].tolist()
    assert {spec.partition(":")[0] for spec in kept} == blind
    assert "k-table:1-9:1,adaptive=yes" not in kept


@pytest.mark.parametrize("spec", ["threshold:0.5", "dspark-async", "vllm"])
def test_greedy_drafts_make_confidence_of_the_sampled_token_harmless(spec):
    worlds = [with_token_confidence(with_greedy_drafts(world)) for world in default_worlds()]
    assert check_lossless([spec], worlds).lossless.all()


def test_worlds_are_proper_and_drawn_again_by_their_seed():
    worlds, again, other = default_worlds(3), default_worlds(3), default_worlds(4)
    for world, twin in zip(worlds, again, strict=True):
        assert np.array_equal(world.verify_ns, twin.verify_ns)
        for tables in world.requests:
            for table in (*tables.target, *tables.draft):
                np.testing.assert_allclose(table.sum(axis=-1), 1.0)
    assert not np.array_equal(worlds[1].requests[0].target[0], other[1].requests[0].target[0])
    assert len({world.name for world in worlds}) == len(worlds)


def test_a_users_own_rule_is_judged(rules):
    rows = check_lossless([rules + "look_ahead", rules + "Neighbour"]).set_index("policy")
    assert not rows.lossless[rules + "look_ahead"]
    assert rows.lossless[rules + "Neighbour"]  # c_1 depends on no drafted token


def test_a_users_own_rule_remembers_nothing_of_other_drafts(rules):
    got = output_distribution(rules + "Growing", appendix_a())
    np.testing.assert_allclose(got, output_distribution("fixed:1", appendix_a()), atol=1e-15)


def test_impossible_lengths_name_the_rule(rules):
    with pytest.raises(UserError, match=r"too_many': verify_lengths must .* 0 to \[2\], got \[3\]"):
        check_lossless([rules + "too_many"])


def test_unknown_settings_and_no_worlds_are_refused():
    with pytest.raises(UserError, match="unknown setting 'greed': did you mean 'greedy'"):
        check_lossless(["none"], setting="greed")
    with pytest.raises(UserError, match="at least one world"):
        check_lossless(["none"], worlds=[])


def test_the_table_says_lossless_or_how_biased(rows):
    lines = format_lossless(rows.reset_index()).splitlines()
    assert len(lines) == len(BUILT_IN) + 1
    said = dict(line.split(maxsplit=1) for line in lines)
    assert said["dspark"].endswith("lossless")
    assert "0.1500 in appendix-a" in said["vllm:lag=0"]
    assert said["oracle"].endswith("0.1350 in appendix-a")
