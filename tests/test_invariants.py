"""What must hold in every run, over random traces, profiles, laws, loads and policies."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenarios import BUILT_IN, Case, cases, make_profile, make_trace

from dspark_sim.acceptance import load_acceptance
from dspark_sim.config import Scenario
from dspark_sim.policies import BelievedCost, DraftView, SchedulerView

LIKELY = [name for name in BUILT_IN if name != "oracle"]


def examples(count):
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def limit_of_slots(case):
    return min(
        case.profile.max_num_seqs,
        case.profile.max_num_batched_tokens // (1 + case.gamma),
        case.scenario.concurrency or len(case.trace),
    )


class Watchful:
    """Asks a built-in rule and keeps the running requests, verdicts and views of every step."""

    def __init__(self, built_in):
        self.built_in, self.max_draft_len = built_in, built_in.max_draft_len
        self.draft_lengths = built_in.draft_lengths
        self.views, self.verdicts = [], []

    def verify_lengths(self, view):
        self.views.append(view)
        self.verdicts.append(self.built_in.verify_lengths(view))
        return self.verdicts[-1]


@examples(30)
@given(cases())
def test_tokens_and_requests_are_conserved(case):
    result = case.run()
    rows, steps, summary = result.requests, result.steps, result.summary
    assert rows["request_id"].tolist() == case.trace.requests["request_id"].tolist()
    assert summary["completed"] == len(case.trace)
    total = int(case.trace.requests["output_tokens"].sum())
    assert summary["total_output_tokens"] == total
    for column in ("draft_tokens", "verify_tokens", "accepted_tokens"):
        assert rows[column].sum() == steps[column].sum()
    assert rows["steps"].sum() == steps["num_requests"].sum()
    first_elsewhere = case.scenario.prefill.mode != "chunked"  # not by a step
    recomputed = rows["preemptions"].sum() if case.scenario.prefill.mode == "separate" else 0
    missing = total - steps["output_tokens"].sum()
    assert first_elsewhere * len(rows) <= missing <= first_elsewhere * len(rows) + recomputed
    tokens = steps["num_requests"] + steps["verify_tokens"] + steps["prefill_tokens"]
    assert (steps["batch_tokens"] == tokens).all()
    chunks = rows["output_tokens"] - 1
    assert result.gaps[:, 1].sum() <= chunks.sum()


@examples(30)
@given(cases())
def test_every_prompt_is_prefilled_once_unless_preempted(case):
    scenario = case.scenario.model_copy(
        update={"prefill": case.scenario.prefill.model_copy(update={"mode": "chunked"})}
    )
    result = replace(case, scenario=scenario).run()
    prompts = case.trace.requests["prompt_tokens"].sum()
    prefilled = result.steps["prefill_tokens"].sum()
    assert prefilled >= prompts
    if result.requests["preemptions"].sum() == 0:
        assert prefilled == prompts


@examples(30)
@given(cases())
def test_the_clock_is_whole_nanoseconds_and_never_goes_back(case):
    result = case.run()
    steps, rows = result.steps, result.requests
    assert steps["start_ns"].dtype == np.int64
    assert steps["step_ns"].dtype == np.int64
    assert result.gaps.dtype == np.int64
    assert (steps["step_ns"] > 0).all()
    ends = (steps["start_ns"] + steps["step_ns"]).to_numpy()
    assert (steps["start_ns"].to_numpy()[1:] >= ends[:-1]).all()
    assert (result.gaps[:, 0] > 0).all()
    times = rows[["arrival_s", "admitted_s", "first_token_s", "finish_s"]].to_numpy()
    nanoseconds = times * 1e9
    assert np.abs(nanoseconds - np.rint(nanoseconds)).max() < 1e-3
    arrival, admitted, first, finish = times.T
    assert (arrival >= 0).all()
    assert (arrival <= admitted).all()
    assert (arrival <= first).all()
    assert (admitted <= finish).all()
    assert (first <= finish).all()


@examples(30)
@given(cases(policies=tuple(LIKELY)))
def test_verify_lengths_lie_between_nothing_and_the_draft(case):
    policy = Watchful(case.policy())
    result = case.run(policy)
    for view, verdict in zip(policy.views, policy.verdicts, strict=True):
        assert (verdict >= 0).all()
        assert (verdict <= view.draft_len).all()
        assert (view.draft_len <= case.gamma).all()
    steps = result.steps
    assert (steps["verify_tokens"] <= steps["draft_tokens"]).all()
    assert (steps["accepted_tokens"] <= steps["verify_tokens"]).all()
    assert (steps["draft_tokens"] <= steps["num_requests"] * case.gamma).all()


@examples(30)
@given(cases())
def test_slots_tokens_and_kv_blocks_stay_within_their_limits(case):
    result = case.run()
    steps, profile = result.steps, case.profile
    assert (steps["num_requests"] <= limit_of_slots(case)).all()
    assert (steps["batch_tokens"] <= profile.max_num_batched_tokens).all()
    reserved = steps["num_requests"] * (1 + case.gamma) + steps["prefill_tokens"]
    assert (reserved <= profile.max_num_batched_tokens).all()
    if profile.kv_tokens is not None:
        assert (steps["kv_blocks"] <= profile.kv_tokens // profile.block_size).all()
    else:
        assert result.summary["preemptions"] == 0
    assert (steps["kv_blocks"] >= 0).all()
    if len(steps):
        assert result.summary["mean_running"] <= limit_of_slots(case) * (1 + 1e-12)


@examples(30)
@given(cases(policies=tuple(LIKELY)))
def test_the_blocks_held_are_those_of_every_running_request(case):
    """Without prefill in the batch all running requests decode, so that the view shows them all."""
    if case.scenario.prefill.mode == "chunked":
        prefill = case.scenario.prefill.model_copy(update={"mode": "separate"})
        case = replace(case, scenario=case.scenario.model_copy(update={"prefill": prefill}))
    policy = Watchful(case.policy())
    result = case.run(policy)
    held = [
        int((-(-(view.context_tokens + case.gamma + 1) // case.profile.block_size)).sum())
        for view in policy.views
    ]
    assert result.steps["kv_blocks"].tolist() == held


def ready_ns(case, rows):
    """When each request is ready for the engine: at its arrival, or at its prefill's end."""
    column = "first_token_s" if case.scenario.prefill.mode == "separate" else "arrival_s"
    return np.rint(rows[column].to_numpy() * 1e9).astype(np.int64)


@examples(30)
@given(cases())
def test_requests_are_admitted_first_come_first_served(case):
    rows = case.run().requests
    if case.scenario.prefill.mode == "separate":  # a single token ends there, without the queue
        rows = rows[rows["output_tokens"] > 1]
    order = np.lexsort((np.arange(len(rows)), ready_ns(case, rows)))
    assert (np.diff(rows["admitted_s"].to_numpy()[order]) >= 0).all()


@examples(30)
@given(cases())
def test_the_engine_never_idles_while_a_request_waits(case):
    if case.scenario.prefill.mode == "separate":  # its recomputing requests are nowhere to be seen
        case = replace(case, profile=replace(case.profile, kv_tokens=None))
    result = case.run()
    ready = ready_ns(case, result.requests)
    finish = np.rint(result.requests["finish_s"].to_numpy() * 1e9).astype(np.int64)
    starts = result.steps["start_ns"].to_numpy()
    ends = starts + result.steps["step_ns"].to_numpy()
    for end, start in zip(ends[:-1], starts[1:], strict=True):
        if start > end:
            assert start in ready
            assert not ((ready < start) & (finish > np.maximum(end, ready))).any()


@examples(30)
@given(cases())
def test_a_waiting_request_means_that_something_is_full(case):
    """With KV to spare and no prompts in the batch, what is full can only be the slots."""
    mode = {"chunked": "none"}.get(case.scenario.prefill.mode, case.scenario.prefill.mode)
    prefill = case.scenario.prefill.model_copy(update={"mode": mode})
    scenario = case.scenario.model_copy(update={"prefill": prefill})
    profile = replace(case.profile, kv_tokens=None)
    steps = replace(case, scenario=scenario, profile=profile).run().steps
    crowded = steps[steps["num_waiting"] > 0]
    assert (crowded["num_requests"] == limit_of_slots(case)).all()


def test_no_view_has_a_place_for_an_outcome():
    allowed = {
        "time_s", "request", "context_tokens", "output_tokens", "decode_steps", "last_verify_len",
        "last_accepted", "history", "prefill_tokens", "num_sampling", "num_waiting", "cost",
        "max_draft_len", "draft_len", "confidence",
    }  # fmt: skip
    assert {field.name for field in fields(SchedulerView)} == allowed
    assert {field.name for field in fields(DraftView)} == allowed - {"draft_len", "confidence"}
    cost = {field.name for field in fields(BelievedCost)}
    assert cost == {"verify_ns", "draft_ns", "fixed_ns"}


@examples(25)
@given(cases(policies=("fixed:3",)))
def test_what_a_view_tells_of_the_past_is_censored(case):
    """last_accepted never exceeds last_verify_len, and says nothing of a first step."""
    policy = Watchful(case.policy())
    case.run(policy)
    for view in policy.views:
        assert (view.last_accepted <= view.last_verify_len).all()
        fresh = view.decode_steps == 0
        assert (view.last_verify_len[fresh] == -1).all()
        assert (view.last_accepted[fresh] == -1).all()
        assert (view.history[fresh] == 1.0).all()


@examples(25)
@given(cases(policies=("fixed:3",)), st.integers(1, 1000))
def test_longer_outputs_do_not_change_what_a_policy_saw_before(case, more):
    """Output lengths are not in the view: two runs look alike until the first request ends."""
    rows = case.trace.requests
    longer = replace(case.trace, requests=rows.assign(output_tokens=rows["output_tokens"] + more))
    profile = replace(case.profile, kv_tokens=None)
    seen = []
    for trace in (case.trace, longer):
        policy = Watchful(case.policy())
        result = replace(case, trace=trace, profile=profile).run(policy)
        seen.append((policy.views, result.requests["finish_s"].min()))
    end = seen[0][1]
    for one, other in zip(seen[0][0], seen[1][0], strict=False):
        if one.time_s >= end:
            break
        assert one.time_s == other.time_s
        assert np.array_equal(one.confidence, other.confidence)
        assert np.array_equal(one.context_tokens, other.context_tokens)


@examples(30)
@given(cases(policies=("fixed:3",)))
def test_a_policy_that_scribbles_on_its_view_changes_nothing(case):
    class Scribbler:
        max_draft_len = 3

        @staticmethod
        def verify_lengths(view):
            answer = view.draft_len.copy()
            for array in (view.confidence, view.history, view.context_tokens, view.request):
                array[:] = 7
            view.last_accepted[:] = view.draft_len[:] = 0
            for array in (view.cost.verify_ns, view.cost.draft_ns):
                if array.flags.writeable:
                    array[:] = 1
            return answer

    honest, scribbled = case.run(), case.run(Scribbler())
    assert honest.steps.equals(scribbled.steps)
    assert honest.requests.equals(scribbled.requests)


def saved_bytes(result, folder):
    result.save(folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@examples(15)
@given(cases(), cases())
def test_the_same_seed_gives_the_same_bytes_whatever_ran_between(tmp_path_factory, case, other):
    folder = tmp_path_factory.mktemp("runs")
    first = saved_bytes(case.run(), folder / "a")
    other.run()
    again = saved_bytes(case.run(), folder / "b")
    assert first == again
    assert {"config.json", "summary.json", "requests.parquet"} <= set(first)


def lonely_and_crowded(policy, **options):
    """Return the runs of the same 48 requests one at a time, and 16 at once."""
    rng = np.random.default_rng(0)
    trace = make_trace(np.zeros(48), rng.integers(1, 40, 48), rng.integers(1, 90, 48))
    keys = {"profile": "toy", "policy": policy, "prefill": {"mode": "none"}} | options
    profile = make_profile(context_ms_per_kv_token=1e-3)
    return [
        Case(Scenario(**keys, concurrency=c), trace, profile, load_acceptance("chat-dspark")).run()
        for c in (1, 16)
    ]


@pytest.mark.parametrize("policy", ["fixed:1", "fixed:4", "fixed:3,gamma=7", "threshold:0.7"])
def test_luck_does_not_depend_on_load(policy):
    """A rule that looks at one request alone gives it the same rounds whoever runs beside it."""
    lonely, crowded = lonely_and_crowded(policy)
    columns = ["steps", "draft_tokens", "verify_tokens", "accepted_tokens"]
    assert lonely.requests[columns].equals(crowded.requests[columns])
    assert lonely.steps["num_requests"].max() == 1
    assert crowded.steps["num_requests"].max() == 16


def test_another_seed_is_other_luck():
    one, other = (lonely_and_crowded("fixed:4", seed=seed)[0] for seed in (0, 1))
    assert one.requests["accepted_tokens"].tolist() != other.requests["accepted_tokens"].tolist()


def test_a_request_keeps_its_luck_when_others_are_taken_away():
    trace = make_trace(np.zeros(20), [10] * 20, [50] * 20)
    scenario = Scenario(profile="toy", policy="fixed:4")
    case = Case(scenario, trace, make_profile(), load_acceptance("chat-dspark"))
    alone = replace(case, trace=trace.head(5))
    columns = ["steps", "accepted_tokens"]
    assert case.run().requests[columns].head(5).equals(alone.run().requests[columns])


def test_verifying_more_never_takes_more_rounds():
    """Each position is tested once, so the rounds of fixed:5 are at most those of fixed:2."""
    few, many = (lonely_and_crowded(f"fixed:{k},gamma=5")[0].requests for k in (2, 5))
    assert (many["steps"] <= few["steps"]).all()
    assert many["steps"].sum() < few["steps"].sum()
