import json
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_simulator import Twin
from scenarios import BUILT_IN, Case, cases, make_profile, make_trace

from dspark_sim.acceptance import MixedAcceptance, geometric, load_acceptance
from dspark_sim.config import Scenario
from dspark_sim.core import UserError
from dspark_sim.simulator.result import to_json

WRAPPABLE = [name for name in BUILT_IN if name != "oracle"]


def examples(count):
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def twin_of(case, policy=None):
    policy = policy or case.policy()
    return Twin(case.scenario, case.trace, case.profile, case.source, policy).run()


def nanoseconds(seconds):
    return np.rint(seconds.to_numpy() * 1e9).astype(np.int64).tolist()


def assert_agree(result, twin):
    """Compare times, counts, steps and gaps to the last nanosecond."""
    table = pd.DataFrame([vars(r) for r in twin.requests])
    for name in ("arrival", "admitted", "first_token", "finish"):
        assert nanoseconds(result.requests[f"{name}_s"]) == table[name].tolist(), name
    for name in ("steps", "preemptions"):
        assert result.requests[name].tolist() == table[name].tolist(), name
    for column, name in (("draft", "drafted"), ("verify", "verified"), ("accepted", "accepted")):
        assert result.requests[f"{column}_tokens"].tolist() == table[name].tolist(), name
    steps = pd.DataFrame(twin.steps, columns=list(result.steps.columns))
    for name in steps:
        assert result.steps[name].tolist() == steps[name].tolist(), name
    counted = pd.Series(result.gaps[:, 1]).groupby(result.gaps[:, 0]).sum().to_dict()
    assert counted == dict(twin.gaps)


def assert_same_views(seen, expected):
    assert len(seen) == len(expected)
    for got, want in zip(seen, expected, strict=True):
        for field in fields(want):
            if field.name == "cost":
                continue
            a, b = getattr(got, field.name), getattr(want, field.name)
            assert np.shape(a) == np.shape(b), field.name
            assert np.allclose(a, b, rtol=1e-12, atol=0), field.name
        assert got.cost.fixed_ns == want.cost.fixed_ns
        assert np.array_equal(got.cost.verify_ns, want.cost.verify_ns)
        assert np.array_equal(got.cost.draft_ns, want.cost.draft_ns)


def assert_identical(one, other):
    """Compare everything but the configuration bit by bit."""
    assert to_json(one.summary) == to_json(other.summary)
    pd.testing.assert_frame_equal(one.requests, other.requests, check_exact=True)
    pd.testing.assert_frame_equal(one.steps, other.steps, check_exact=True)
    assert np.array_equal(one.gaps, other.gaps)


class Wrapped:
    """A user's policy that asks a built-in one."""

    def __init__(self, built_in):
        self.verify_lengths = built_in.verify_lengths
        self.draft_lengths = built_in.draft_lengths
        self.max_draft_len = built_in.max_draft_len


class Wavering:
    """A user's policy with draft lengths of its own, down to none, that keeps what it sees."""

    def __init__(self, max_draft_len):
        self.max_draft_len = max_draft_len
        self.views = []

    def draft_lengths(self, view):
        return (3 * view.request + view.decode_steps) % (view.max_draft_len + 1)

    def verify_lengths(self, view):
        self.views.append(view)
        return np.minimum(view.draft_len, view.output_tokens % 4)


def widened(case, gamma):
    """Make a case's profile large enough for another draft length."""
    rows = case.trace.requests
    changes = {"max_num_batched_tokens": max(case.profile.max_num_batched_tokens, 1 + gamma)}
    if case.profile.kv_tokens is not None:
        longest = int((rows["prompt_tokens"] + rows["output_tokens"]).max())
        room = longest + gamma + 1 + case.profile.block_size
        changes["kv_tokens"] = max(case.profile.kv_tokens, room)
    return replace(case, profile=replace(case.profile, **changes))


@examples(200)
@given(cases())
def test_the_engine_is_its_plain_python_twin_to_the_nanosecond(case):
    assert_agree(case.run(), twin_of(case))


@examples(40)
@given(cases(policies=("fixed:3",)), st.integers(0, 5))
def test_a_policy_that_drafts_what_it_likes_sees_what_the_twin_shows(case, gamma):
    case = widened(case, gamma)
    policy, shadow = Wavering(gamma), Wavering(gamma)
    result, twin = case.run(policy), twin_of(case, shadow)
    assert_agree(result, twin)
    assert_same_views(policy.views, shadow.views)


@examples(40)
@given(cases())
def test_step_by_step_gives_the_same_bits(case):
    assert_identical(case.run(), case.run(stepwise=True))


@examples(40)
@given(cases(policies=tuple(WRAPPABLE)))
def test_a_user_policy_that_asks_a_built_in_one_gives_the_same_bits(case):
    if case.scenario.policy.startswith("vllm"):  # the engine makes its table monotone
        belief = case.scenario.belief.model_copy(update={"table": "monotone"})
        case = replace(case, scenario=case.scenario.model_copy(update={"belief": belief}))
    assert_identical(case.run(), case.run(Wrapped(case.policy())))


@examples(20)
@given(cases())
def test_what_is_recorded_changes_nothing_else(case):
    full = case.run()
    for record, requests in (("requests", full.requests), ("summary", full.requests[:0])):
        scenario = case.scenario.model_copy(update={"record": record})
        short = replace(case, scenario=scenario).run()
        assert short.steps.empty
        assert_identical(replace(full, requests=requests, steps=short.steps), short)


def loaded_case(policy, **scenario):
    """Return a busy case: 40 requests that overlap, with prefill in the batch and little KV."""
    rng = np.random.default_rng(3)
    trace = make_trace(
        np.cumsum(rng.integers(0, 4, 40)) / 1000, rng.integers(5, 60, 40), rng.integers(1, 60, 40)
    )
    profile = make_profile(
        max_num_seqs=12, max_num_batched_tokens=100, kv_tokens=600, context_ms_per_kv_token=1e-3
    )
    keys = {"profile": "toy", "policy": policy, "num_speculative_tokens": 5} | scenario
    return Case(Scenario(**keys), trace, profile, load_acceptance("chat-dspark"))


def test_a_very_long_run_keeps_every_second_or_fourth_step(monkeypatch):
    case = loaded_case("vllm")
    every = case.run()
    assert every.config["record_every"] == 1
    monkeypatch.setattr("dspark_sim.simulator.state.FIRST_STEPS", 8)
    monkeypatch.setattr("dspark_sim.simulator.state.MOST_STEPS", 16)
    for stepwise in (False, True):
        some = case.run(stepwise=stepwise)
        stride = some.config["record_every"]
        assert stride > 2
        assert 8 <= len(some.steps) <= 16
        expected = every.steps[::stride].reset_index(drop=True)
        pd.testing.assert_frame_equal(some.steps, expected, check_exact=True)
        assert some.summary == every.summary
        pd.testing.assert_frame_equal(some.requests, every.requests, check_exact=True)


@pytest.mark.parametrize("mode", ["chunked", "separate", "none"])
@pytest.mark.parametrize("policy", BUILT_IN)
def test_every_built_in_policy_agrees_with_the_twin_under_pressure(policy, mode):
    case = loaded_case(policy, prefill={"mode": mode})
    result, twin = case.run(), twin_of(case)
    assert result.summary["preemptions"] > 0
    assert_agree(result, twin)
    assert_identical(result, case.run(stepwise=True))


def test_times_of_running_and_of_kv_blocks_are_the_twins():
    case = loaded_case("dspark-async")
    result, twin = case.run(), twin_of(case)
    busy = sum(step["step_ns"] for step in twin.steps)
    window = twin.now - min(r.arrival for r in twin.requests)
    assert result.summary["mean_running"] == pytest.approx(twin.running_ns / window, rel=1e-12)
    assert result.summary["mean_kv_blocks"] == pytest.approx(twin.block_ns / busy, rel=1e-12)
    assert result.summary["utilisation"] == pytest.approx(busy / window, rel=1e-12)


def test_a_request_of_each_category_draws_from_its_own_law():
    sources = {"sure": geometric(5.9, 5), "vain": geometric(1.1, 5)}
    case = loaded_case("fixed:5")
    names = np.array(["sure", "vain"])[np.arange(40) % 2]
    trace = replace(case.trace, requests=case.trace.requests.assign(category=names))
    mixed = replace(case, trace=trace, source=MixedAcceptance("mix", sources, None))
    rows = mixed.run().requests
    share = rows["accepted_tokens"] / rows["verify_tokens"]
    assert share[names == "sure"].mean() > 0.9
    assert share[names == "vain"].mean() < 0.2


def test_completions_of_prefill_workers_issue_in_order_of_time():
    """The worker ends request 1 at 2.2 ms, while a step ends request 0 at 2.3 ms."""
    verify = pd.DataFrame({"batch_tokens": [1, 2, 8], "ms": [1.2, 1.1, 1.1]})
    case = Case(
        Scenario(profile="toy", policy="none", concurrency=2, prefill={"mode": "separate"}),
        make_trace([0.0] * 4, [2] * 4, [2, 1, 1, 1]),
        make_profile(verify=verify),
        geometric(2.0, 7),
    )
    rows = case.run().requests
    assert nanoseconds(rows["arrival_s"]) == [0, 0, 2_200_000, 2_300_000]
    assert nanoseconds(rows["finish_s"]) == [2_300_000, 2_200_000, 3_300_000, 4_400_000]


def test_a_request_that_ends_with_its_separate_prefill_was_admitted_then():
    case = Case(
        Scenario(profile="toy", policy="none", prefill={"mode": "separate"}),
        make_trace([0.0, 0.0], [1, 1], [1, 1]),
        make_profile(),
        geometric(2.0, 7),
    )
    result = case.run()
    assert nanoseconds(result.requests["admitted_s"]) == [1_100_000, 2_200_000]
    assert result.summary["mean_queue_requests"] > 0


def test_a_prefill_table_is_asked_only_for_what_is_prefilled():
    prefill = pd.DataFrame({"tokens": [16, 64], "ms": [2.0, 8.0]})
    case = Case(
        Scenario(profile="toy", policy="none", prefill={"mode": "separate"}),
        make_trace([0.0], [32], [40]),
        make_profile(prefill=prefill),
        geometric(2.0, 7),
    )
    assert nanoseconds(case.run().requests["first_token_s"]) == [4_000_000]


def test_a_belief_in_another_lookup_keeps_the_given_profile():
    verify = pd.DataFrame({"batch_tokens": [1, 8, 64], "ms": [1.0, 2.0, 9.0]})
    case = Case(
        Scenario(profile="toy", policy="dspark", belief={"lookup": "floor"}),
        make_trace([0.0] * 8, [4] * 8, [20] * 8),
        make_profile(verify=verify, max_num_batched_tokens=64),
        load_acceptance("chat-dspark"),
    )
    flat = replace(case, scenario=Scenario(profile="toy", policy="dspark"))
    assert case.run().summary["verify_budget"] > flat.run().summary["verify_budget"]


def test_a_request_that_can_never_fit_is_refused_at_once():
    case = loaded_case("fixed:3")
    small = replace(case, profile=replace(case.profile, kv_tokens=64))
    with pytest.raises(UserError, match=r"request '\d+' of trace 'trace' can never fit.*= 64"):
        small.run()


def test_too_few_batched_tokens_for_one_block_are_refused():
    case = loaded_case("fixed:5")
    small = replace(case, profile=replace(case.profile, max_num_batched_tokens=5))
    with pytest.raises(UserError, match="max_num_batched_tokens = 5 cannot hold one request"):
        small.run()


def test_a_batch_outside_the_table_is_an_error_or_counted_as_extended():
    verify = pd.DataFrame({"batch_tokens": [1, 2, 3], "ms": [1.0, 1.5, 2.0]})
    case = loaded_case("fixed:3", prefill={"mode": "none"})
    case = replace(case, profile=replace(case.profile, verify=verify))
    with pytest.raises(UserError, match=r"no cost for a batch of \d+ tokens.*extension"):
        case.run()
    scenario = case.scenario.model_copy(update={"extend": True})
    extended = replace(case, scenario=scenario)
    result = extended.run()
    assert_agree(result, twin_of(extended))
    share = (result.steps["batch_tokens"] > 3).mean()
    assert result.summary["extended_step_fraction"] == pytest.approx(share)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda view: view.draft_len + 1, r"verify_lengths gave 6 .* allowed is 0 to 5"),
        (lambda view: view.draft_len * 0 - 1, "verify_lengths gave -1"),
        (lambda view: view.draft_len[:-1], r"must return \d+ whole numbers, one per request"),
        (lambda view: view.draft_len * 0.5, "got shape .* of float64"),
    ],
)
def test_a_wrong_answer_of_a_user_policy_names_what_is_allowed(answer, said):
    class Odd:
        verify_lengths = staticmethod(answer)

    with pytest.raises(UserError, match=said):
        loaded_case("fixed:5").run(Odd())


def test_a_wrong_draft_length_of_a_user_policy_names_what_is_allowed():
    class Odd:
        @staticmethod
        def draft_lengths(view):
            return np.full(view.num_requests, 9)

        @staticmethod
        def verify_lengths(view):
            return view.draft_len

    with pytest.raises(UserError, match=r"draft_lengths gave 9 .* allowed is 0 to 5"):
        loaded_case("fixed:5").run(Odd())


def test_the_resolved_scenario_and_the_inputs_hashes_are_in_the_config():
    case = loaded_case("fixed:3", seed=4)
    config = json.loads(to_json(case.run().config))
    assert Scenario(**config["scenario"]) == case.scenario
    assert config["max_draft_len"] == 3
    other = replace(case, trace=case.trace.scaled(2.0)).run().config
    assert other["hashes"]["trace"] != config["hashes"]["trace"]
    assert other["hashes"]["profile"] == config["hashes"]["profile"]
