"""Our own rule: what it forecasts, when it drafts, and that it looks at the past alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_steps import step_view

from dspark_sim.config import Scenario
from dspark_sim.policies import load_policy
from dspark_sim.policies.forecast_pool import BlockPool, StepClock, request_surplus
from dspark_sim.simulator import simulate
from dspark_sim.study.lossless import TOLERANCE, tv_bias
from dspark_sim.study.worlds import SHAPES, random_world

PRIMED = """
import numpy as np
from dataclasses import replace
from policy_steps import step_view
from dspark_sim.policies import load_policy

class Primed:
    '''forecast after 120 steps of three requests, calibrated and with blocks of their own.'''
    def __init__(self, num_speculative_tokens):
        gamma, rng = num_speculative_tokens, np.random.default_rng(0)
        self.rule = load_policy("forecast", gamma)
        costs = 10 + np.arange(20)
        for step in range(120):
            last = rng.integers(0, gamma + 1, 3)
            view = step_view(rng.uniform(0.05, 0.95, (3, gamma)), costs)
            view = replace(view, time_s=step * 1e-8, decode_steps=np.full(3, step),
                           last_verify_len=last, last_accepted=last // 2)
            self.rule.draft_lengths(view)
            self.rule.verify_lengths(view)

    def draft_lengths(self, view):
        return self.rule.draft_lengths(view)

    def verify_lengths(self, view):
        return self.rule.verify_lengths(view)
"""


def primed(view, gamma):
    """Return the policy after thirty such steps, each of which took what was believed."""
    policy = load_policy("forecast", gamma)
    for _ in range(30):
        policy.draft_lengths(view)
        took = replace(view, draft_len=np.full(view.num_requests, gamma))
        policy.verify_lengths(took)
        policy._clock = StepClock()
    return policy


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10_000))
def test_a_pool_that_is_the_batch_promises_the_sum_of_its_best(num, gamma, seed):
    survival = np.cumprod(np.random.default_rng(seed).random((num, gamma)), axis=1)
    pool = BlockPool(gamma)
    pool.add(survival, num)
    best = np.sort(survival, axis=None)[::-1]
    sums = [best[:k].sum() for k in range(num * gamma + 1)]
    assert pool.expected(num, gamma) == pytest.approx(sums)
    twice = pool.expected(2 * num, gamma)
    assert twice[::2] == pytest.approx(2 * np.array(sums))
    assert (np.diff(twice) >= -1e-12).all()
    assert pool.expected(0, gamma).tolist() == [0.0]
    alone = np.concatenate(([0.0], np.cumsum(survival.mean(axis=0))))  # no trade between blocks
    assert pool.expected(1, gamma) == pytest.approx(alone)


def test_a_pool_keeps_four_batches_and_counts_no_request_without_a_block():
    pool = BlockPool(2)
    pool.seed(np.ones((3, 3, 2)))
    assert pool.empty
    history = np.ones((2, 3, 2))
    history[1, 0] = 0.5
    pool.seed(history)
    assert pool.expected(1, 2).tolist() == [0.0, 0.5, 1.0]
    assert pool.expected(3, 1).tolist() == pytest.approx([0.0, 0.5, 1.0, 1.5])
    for level in range(1, 21):
        pool.add(np.full((100, 2), level / 20), 100)
    assert pool.expected(1, 1)[1] == pytest.approx(np.mean([1.0, 0.95, 0.9, 0.85]))


def test_lateness_is_what_a_step_took_beyond_belief_where_a_request_goes_on():
    clock, view = StepClock(), step_view([[0.5, 0.5]], [0, 1000, 2000, 3000], fixed_ns=500)
    assert clock.lateness(view) == 0.0
    clock.note(view, 1)  # believed: 2500 ns
    assert clock.lateness(replace(view, time_s=4e-6)) == pytest.approx(1500)
    clock.note(replace(view, time_s=4e-6), 1)
    assert clock.lateness(replace(view, time_s=9e-6)) == pytest.approx(1500 + 0.1 * 1000)
    clock.note(replace(view, time_s=9e-6), 1)
    idle = replace(view, time_s=9.0, request=np.array([7]))
    assert clock.lateness(idle) == pytest.approx(1600)


def test_the_surplus_of_a_block_is_what_its_tokens_are_worth_beyond_their_price():
    view = step_view(np.full((3, 2), 0.5), [0] * 10)
    blocks = {0: np.array([[0.9, 0.6], [0.5, 0.1]]), 1: np.array([[0.2, 0.1]])}
    own = request_surplus(view, blocks, 0.4, 1.0)
    # Two blocks with 0.8 in all, one with nothing, none: each beside eight that bring 1.
    assert own.tolist() == pytest.approx([8.8 / 10, 8 / 9, 1.0])


def test_the_budget_does_not_look_at_live_confidences():
    costs = [0, *(10 + 4 * m for m in range(20))]
    past = np.full((3, 3, 4), 0.01)
    past[:, :, 0] = 0.9
    for live in (0.05, 0.5, 0.99):
        view = step_view(np.full((3, 4), live), costs, history=past)
        assert load_policy("forecast", 4).verify_lengths(view).sum() == 3


def test_before_it_knows_a_block_it_verifies_everything():
    view = step_view(np.full((3, 4), 0.1), [0, *range(10, 90, 2)])
    policy = load_policy("forecast", 4)
    assert policy.draft_lengths(view).tolist() == [4, 4, 4]
    assert policy.verify_lengths(view).tolist() == [4, 4, 4]


def test_nothing_is_drafted_where_drafts_cost_more_than_they_bring_but_for_a_probe():
    dear = np.zeros((3, 4))
    dear[1:, 1:] = 100
    view = step_view(np.full((2, 3), 0.3), [0, *[100] * 30], draft_ns=dear)
    policy = primed(view, 3)
    drafted = [policy.draft_lengths(view).tolist() for _ in range(200)]
    probes = [step for step, lengths in enumerate(drafted) if lengths == [3, 3]]
    assert np.diff(probes).tolist() == [65, 129]  # 29 of the first pause have passed before
    assert drafted.count([0, 0]) == 197
    cheap = replace(view, cost=replace(view.cost, draft_ns=dear // 50))
    assert policy.draft_lengths(cheap).tolist() == [3, 3]


def test_where_it_is_close_a_step_in_32_does_not_draft():
    draft = np.zeros((3, 4))
    draft[1:, 1:] = 38  # 1.39 tokens per request in 138 ns, or 1 in 100
    view = step_view(np.full((2, 3), 0.3), [0, *[100] * 30], draft_ns=draft)
    policy = primed(view, 3)
    drafted = [policy.draft_lengths(view).sum() for _ in range(64)]
    assert drafted.count(0) == 2
    free = replace(view, cost=replace(view.cost, draft_ns=draft // 50))
    assert all(policy.draft_lengths(free).sum() for _ in range(64))


def test_what_drafting_adds_is_known_from_neighbours_of_which_one_drafted():
    clock, time_s = StepClock(), 0.0
    plain = step_view([[0.5, 0.5]], [0, *[1000] * 5], draft_ns=np.array([[0, 0, 0], [0, 500, 500]]))
    bare = replace(plain, draft_len=np.array([0]))
    for step in range(40):
        drafts = step % 4 > 0
        view = replace(plain if drafts else bare, time_s=time_s)
        clock.lateness(view)
        clock.note(view, 0)
        time_s += (1000 + 200 + (500 + 300) * drafts) * 1e-9
    assert clock.draft_late_ns == pytest.approx(300, abs=1)
    assert clock.lateness(replace(plain, time_s=time_s)) == pytest.approx(200, abs=20)


def test_a_request_whose_blocks_do_not_pay_for_their_draft_is_left_out():
    draft = np.arange(3)[:, None] * np.array([0, 60, 60, 60])
    confidence = np.array([[0.95, 0.95, 0.95], [0.02, 0.02, 0.02]])
    view = step_view(confidence, [0, *[100] * 30], draft_ns=draft)
    policy = primed(view, 3)
    assert policy.draft_lengths(view).tolist() == [3, 0]
    probing = replace(view, decode_steps=np.array([8, 8]))
    assert policy.draft_lengths(probing).tolist() == [3, 3]


def test_longer_drafts_that_cost_more_are_drafted_as_far_as_they_pay():
    draft = np.zeros((2, 5))
    draft[1] = np.arange(5) * 30
    view = step_view([[0.9, 0.9, 0.1, 0.1]], [0, *[100] * 30], draft_ns=draft)
    assert primed(view, 4).draft_lengths(view).tolist() == [2]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(SHAPES))
def test_it_is_lossless_in_any_world_also_after_it_has_learnt(seed, shape):
    world = random_world(np.random.default_rng(seed), "any", shape)
    assert tv_bias("forecast", world) <= TOLERANCE
    assert tv_bias("forecast_primed:Primed", world) <= TOLERANCE


@pytest.fixture(autouse=True)
def primed_module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("primed")
    (folder / "forecast_primed.py").write_text(PRIMED)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


def rate(policy, **settings):
    keys = {"profile": "dsv4-flash-b300-tp4", "prefill": {"mode": "none"}, "requests": 150}
    scenario = Scenario(policy=policy, concurrency=16, record="requests", **(keys | settings))
    return simulate(scenario).summary["tok_s_gpu"]


@pytest.mark.parametrize(
    ("case", "rival", "least"),
    [
        ({"acceptance": "chat-dspark", "belief": {"confidence_bias": 1.5}}, "vllm", 1.01),
        ({"acceptance": "geometric:1.4"}, "vllm", 1.03),
        ({"acceptance": "geometric:1.4"}, "none", 0.995),
    ],
)
def test_it_mends_what_the_published_searches_lose_by(case, rival, least):
    assert rate("forecast", **case) > least * rate(rival, **case)
