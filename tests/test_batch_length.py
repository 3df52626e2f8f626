"""Rules that choose one draft length from what was accepted, against their definitions by hand."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from policy_steps import step_view
from scenarios import Case, make_profile, make_trace

from dspark_sim.acceptance import load_acceptance
from dspark_sim.config import Scenario
from dspark_sim.core import UserError
from dspark_sim.policies import load_policy

LINEAR = [0, *(100 + 10 * m for m in range(1, 200))]


def view_of(verified, accepted, costs=LINEAR, gamma=4, draft_ns=None):
    view = step_view(np.full((len(verified), gamma), 0.5), costs, draft_ns=draft_ns)
    return replace(
        view, last_verify_len=np.array(verified), last_accepted=np.array(accepted)
    )  # fmt: skip


def by_hand(expected, num, costs, draft=0):
    rates = [num * e / (costs[num * (k + 1)] + (draft if k else 0)) for k, e in enumerate(expected)]
    return int(np.argmax(rates))


def test_smartspec_maximises_goodput_of_one_acceptance_rate():
    # α = 0.7: expected tokens 1, 1.7, 2.19, 2.533, 2.7731 for k = 0..4.
    expected = [(1 - 0.7 ** (k + 1)) / 0.3 for k in range(5)]
    for num in (1, 2, 5, 8):
        policy = load_policy("smartspec", 4)
        lengths = policy.draft_lengths(view_of([-1] * num, [-1] * num))
        assert lengths.tolist() == [by_hand(expected, num, LINEAR)] * num
    assert policy.verify_lengths(view_of([-1], [-1])).tolist() == [4]


def test_smartspec_moves_its_rate_by_15_percent_of_what_was_accepted_of_what_was_tested():
    # Tested are the accepted tokens and the first rejected one: 2, 3 and 4 of 4.
    policy = load_policy("smartspec", 4)
    policy.draft_lengths(view_of([4, 4, -1, 0, 4], [1, 2, -1, 0, 4]))
    assert policy.alpha == pytest.approx(0.85 * 0.7 + 0.15 * 7 / 9)


def test_smartspec_takes_the_shorter_of_equals_and_never_leaves_nothing_again():
    # Every length of equal rate: nothing is drafted; then nothing more is learnt.
    expected = np.cumsum(0.5 ** np.arange(5))
    costs = [0, *(16_000 * expected).tolist()]
    policy = load_policy("smartspec:alpha=0.5", 4)
    assert policy.draft_lengths(view_of([-1], [-1], costs)).tolist() == [0]
    policy.draft_lengths(view_of([0], [0], costs))
    assert policy.alpha == 0.5


def test_dsd_online_learns_each_position_from_drafts_that_reached_it():
    policy = load_policy("dsd-online:keep=0.5,alpha=0.8", 3)
    policy.draft_lengths(view_of([1, 3, -1], [1, 1, -1], gamma=3))
    start = 0.8 ** np.arange(1, 4)
    # Position 1: two drafts, both accepted; 2 and 3: one draft that failed there.
    assert policy.rates == pytest.approx(0.5 * start + 0.5 * np.array([1.0, 0.0, 0.0]))


def test_dsd_online_maximises_the_rate_over_its_lengths():
    expected = 1 + np.concatenate(([0], np.cumsum(0.7 ** np.arange(1, 5))))
    for num in (1, 3, 6):
        got = load_policy("dsd-online", 4).draft_lengths(view_of([-1] * num, [-1] * num))
        assert got.tolist() == [by_hand(expected, num, LINEAR)] * num
    some = load_policy("dsd-online:ks=0+3+15", 4)
    assert some.draft_lengths(view_of([-1], [-1])).tolist() == [4]
    rates = {k: expected[k] / LINEAR[k + 1] for k in (0, 3)}
    three = load_policy("dsd-online:ks=0+3", 4).draft_lengths(view_of([-1], [-1]))
    assert three.tolist() == [max(rates, key=rates.get)]


def test_drafting_nothing_costs_no_draft():
    costs, dear = [0, *([1000] * 20)], np.full((2, 5), 10_000)
    dear[:, 0] = 0
    assert load_policy("smartspec", 4).draft_lengths(view_of([-1], [-1], costs)).tolist() == [4]
    lengths = load_policy("smartspec", 4).draft_lengths(view_of([-1], [-1], costs, draft_ns=dear))
    assert lengths.tolist() == [0]


def climb(policy, num, accepted, steps, first=1):
    lengths = []
    for _ in range(steps):
        last = lengths[-1] if lengths else first
        good = min(accepted, last)
        lengths.append(int(policy.draft_lengths(view_of([last] * num, [good] * num, gamma=7))[0]))
    return lengths


def test_sgl_ema_falls_as_many_rungs_as_its_average_asks_for_and_climbs_as_it_is_accepted():
    policy = load_policy("sgl-ema", 7)
    lengths = climb(policy, 1, 0, 16)
    # It begins at 7 with an average of 6; after 15 steps that is 6 · 0.8^15 = 0.21 ≤ 1 − 0.75.
    assert lengths == [7] * 15 + [1]
    lengths = climb(policy, 1, 7, 40)
    assert lengths[-1] == 7
    assert {b - a for a, b in pairwise(lengths)} <= {0, 2}


def test_sgl_ema_stops_drafting_where_its_ladder_allows_it_and_tries_again_an_interval_later():
    policy = load_policy("sgl-ema", 7)
    # Ladder (0, 1): in its middle, at 1, with an average of 0 ≤ 0.25; looked at every five steps.
    assert climb(policy, 40, 0, 26) == [1] * 15 + [0] * 5 + [1] * 5 + [0]
    assert set(climb(load_policy("sgl-ema", 7), 40, 7, 30)) == {1}
    assert set(climb(load_policy("sgl-ema", 7), 64, 7, 30)) == {0}


def test_sgl_ema_keeps_an_average_for_each_ladder():
    policy = load_policy("sgl-ema", 7)
    climb(policy, 1, 0, 16)
    assert climb(policy, 8, 7, 1) == [1]  # the middle of (0, 1, 3)
    assert climb(policy, 1, 7, 1) == [1]  # where the first ladder was left


def test_gate_off_falls_for_good_when_finished_requests_accepted_too_little():
    policy = load_policy("gate-off:1,window=2", 4)

    def lengths(requests, verified, accepted):
        view = replace(view_of(verified, accepted), request=np.array(requests))
        return policy.draft_lengths(view).tolist()

    assert lengths([0, 1], [-1, -1], [-1, -1]) == [4, 4]
    assert lengths([0, 1], [4, 4], [0, 1]) == [4, 4]
    assert lengths([1, 2], [4, -1], [2, -1]) == [4, 4]  # 0 has left, with 0 a step
    assert lengths([2], [4], [4]) == [0]  # 1 has left, with 1.5: mean 0.75 < 1
    assert lengths([2], [4], [4]) == [0]


def test_sticky_off_ends_the_drafting_of_one_request_after_two_probes():
    policy = load_policy("sticky-off:0.5,probe=2", 4)
    for step in range(6):
        last = [-1, -1] if step == 0 else [4, 4]
        got = policy.draft_lengths(view_of(last, [0, 1] if step else [-1, -1])).tolist()
        assert got == ([4, 4] if step < 4 else [0, 4])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("smartspec:alpha=2", r"alpha must lie in 0\.\.1, got 2"),
        ("smartspec:lag=1", "lag is the age .*, and smartspec has none"),
        ("smartspec:conf=platt", "conf changes the drafter's confidences, and smartspec reads"),
        ("dsd-online:ks=0+x", "a length of ks must be a number, got 'x'"),
        ("sgl-ema:every=0", "every must be a whole number of 1 or more, got 0"),
        ("gate-off", "takes 1 plain argument"),
        ("gate-off:-1", "LEAST must be 0 or more, got -1"),
        ("sticky-off:0.5,probe=0", "probe must be a whole number of 1 or more, got 0"),
    ],
)
def test_a_wrong_argument_is_told_in_one_sentence(spec, message):
    with pytest.raises(UserError, match=message):
        load_policy(spec)


@pytest.mark.parametrize(
    "spec", ["smartspec", "dsd-online", "sgl-ema", "gate-off:3", "sticky-off:2,probe=1"]
)
def test_a_step_is_priced_at_the_length_that_was_chosen(spec):
    """What is not drafted costs no draft: the step's time holds the chosen length's."""
    draft = {"num_requests": [1, 1, 64, 64], "draft_len": [1, 5, 1, 5], "ms": [1.0, 5.0, 1.0, 5.0]}
    profile = make_profile(drafter="autoregressive", draft=pd.DataFrame(draft))
    trace = make_trace(np.zeros(30), [5] * 30, [40] * 30)
    scenario = Scenario(
        profile="toy",
        policy=spec,
        num_speculative_tokens=5,
        concurrency=10,
        prefill={"mode": "none"},
    )
    steps = Case(scenario, trace, profile, load_acceptance("chat-dspark")).run().steps
    length = steps["draft_tokens"] / steps["num_requests"]
    if spec != "sticky-off:2,probe=1":
        assert (length == length.round()).all()
        drafting = 1.0 * length
    else:
        drafting = 5.0 * (steps["draft_tokens"] > 0)
    expected = (1.0 + 0.1 * steps["batch_tokens"] + drafting) * 1e6
    assert steps["step_ns"].tolist() == pytest.approx(expected.tolist(), abs=2)
    assert (steps["verify_tokens"] == steps["draft_tokens"]).all()
