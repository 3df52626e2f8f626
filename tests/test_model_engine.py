from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")

import numpy as np  # noqa: E402
from model_lively import lively_target  # noqa: E402
from model_nano import EVERY_DRAFTER, nano_drafter, prompts  # noqa: E402

from dspark_sim.config import Scenario  # noqa: E402
from dspark_sim.core import UserError  # noqa: E402
from dspark_sim.model.engine import (  # noqa: E402
    Engine,
    Limits,
    Sampling,
    StepReport,
    run_closed_loop,
    startup_profile,
)
from dspark_sim.model.engine.drafting import SlotDraft  # noqa: E402
from dspark_sim.model.engine.judging import judge_greedy  # noqa: E402
from dspark_sim.model.engine.startup import doubling  # noqa: E402
from dspark_sim.model.generate import Decoding, generate  # noqa: E402
from dspark_sim.model.speculate import Draft, judge, speculate  # noqa: E402
from dspark_sim.simulator import simulate  # noqa: E402
from dspark_sim.simulator.state import STEP_COLUMNS  # noqa: E402
from dspark_sim.throughput import load_profile  # noqa: E402

if TYPE_CHECKING:
    from dspark_sim.policies import DraftView, SchedulerView

TARGET, SMALL = lively_target(), lively_target(8)
GREEDY = Sampling(0.0)
PROFILE = load_profile("dsv4-flash-b300-tp4", {"overhead_ms": 0.5})
ROOMY, TIGHT = Limits(8, 256, 64), Limits(3, 17, 64)


def drain(engine: Engine) -> list[StepReport]:
    reports = []
    while (report := engine.step()) is not None:
        reports.append(report)
    return reports


def answers(engine: Engine, vocab_size: int = 64) -> list[list[int]]:
    """Responses to six prompts of which the second half arrive while the first are under way."""
    asked = prompts(6, vocab_size)
    requests = [engine.add(prompt, 15) for prompt in asked[:3]]
    for prompt in asked[3:]:
        engine.step()
        requests.append(engine.add(prompt, 15))
    drain(engine)
    return [request.tokens for request in requests]


class Recorder:
    """A policy that drafts and verifies different lengths and keeps what it was shown."""

    name = "recorder"

    def __init__(self, gamma: int = 4) -> None:
        self.max_draft_len = gamma
        self.before: list[DraftView] = []
        self.views: list[SchedulerView] = []

    def draft_lengths(self, view: DraftView) -> np.ndarray:
        self.before.append(view)
        return (view.request + view.output_tokens) % (self.max_draft_len + 1)

    def verify_lengths(self, view: SchedulerView) -> np.ndarray:
        self.views.append(view)
        return np.minimum(view.draft_len, (2 * view.request + view.output_tokens) % 4)


GREEDY_TEXTS = generate(SMALL, prompts(6, 8), Decoding(15, temperature=0.0))


@pytest.mark.parametrize("name", EVERY_DRAFTER)
@pytest.mark.parametrize("policy", ["none", "fixed:1", "threshold:0.3", "vllm"])
def test_greedy_responses_are_those_of_greedy_decoding(name: str, policy: str) -> None:
    drafter = nano_drafter(name, SMALL)
    for limits in (ROOMY, TIGHT):
        engine = Engine(SMALL, drafter, policy, limits, sampling=GREEDY, profile=PROFILE)
        assert answers(engine, 8) == GREEDY_TEXTS


@pytest.mark.parametrize("policy", ["dspark", "dspark-async", "fixed:2,gamma=4", Recorder()])
def test_every_policy_leaves_greedy_responses_as_they_are(policy: Any) -> None:
    drafter = nano_drafter("dspark-markov", SMALL)
    engine = Engine(SMALL, drafter, policy, TIGHT, sampling=GREEDY, profile=PROFILE)
    assert answers(engine, 8) == GREEDY_TEXTS


def test_greedy_judging_is_sampled_judging_at_temperature_0() -> None:
    torch.manual_seed(3)
    for _ in range(20):
        verify = torch.randint(0, 5, (6,))
        first = torch.cat([torch.zeros(1, dtype=torch.long), (1 + verify).cumsum(0)])
        best = torch.randint(0, 2, (int(first[-1]),))
        tokens = torch.randint(0, 2, (6, 4))
        p, q = (torch.nn.functional.one_hot(t, 2).float() for t in (best, tokens))
        padded = torch.nn.functional.pad(p, (0, 0, 0, 4))
        target = torch.stack([padded[start : start + 5] for start in first[:-1].tolist()])
        luck = torch.rand(6, 4, dtype=torch.double), torch.rand(6, 5, dtype=torch.double)
        expected = judge(Draft(tokens, q[..., 0], q), target, verify, luck)
        found = judge_greedy(best, first[:-1], verify, SlotDraft(tokens, q[..., 0]))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", EVERY_DRAFTER)
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_sampled_responses_do_not_depend_on_the_batch(name: str, top_p: float) -> None:
    drafter, c = nano_drafter(name, TARGET), Decoding(15, top_p=top_p, seed=5)
    length = min(3, drafter.gamma)
    expected = speculate(TARGET, drafter, prompts(6), c, length).responses
    assert len({token for text in expected for token in text}) > 20
    for limits in (ROOMY, TIGHT):
        policy = f"fixed:{length}"
        engine = Engine(TARGET, drafter, policy, limits, sampling=Sampling(1.0, top_p), seed=5)
        assert answers(engine) == expected


def test_a_drafter_with_few_words_is_as_exact() -> None:
    drafter = nano_drafter("dspark-rnn", TARGET, draft_ids=tuple(range(0, 64, 2)))
    expected = speculate(TARGET, drafter, prompts(6), Decoding(15, seed=8), 4)
    assert sum(record.accepted for record in expected.records) > 20
    engine = Engine(TARGET, drafter, "fixed:4", TIGHT, seed=8)
    assert answers(engine) == expected.responses


def test_requests_of_one_batch_may_be_drawn_in_different_ways() -> None:
    drafter = nano_drafter("dflash", TARGET)
    ways = [Sampling(0.0), Sampling(0.7), Sampling(1.0, 0.8)]
    alone = []
    for number, way in enumerate(ways):
        engine = Engine(TARGET, drafter, Recorder(), TIGHT)
        alone.append(engine.add(prompts(3)[number], 15, sampling=way, name=number))
        drain(engine)
    together = Engine(TARGET, drafter, "fixed:4", ROOMY)
    found = [together.add(p, 15, sampling=w) for p, w in zip(prompts(3), ways, strict=True)]
    drain(together)
    assert found[0].tokens == alone[0].tokens
    apart = speculate(TARGET, drafter, prompts(3), Decoding(15, temperature=0.7), 4).responses
    assert found[1].tokens == apart[1]


def test_a_name_brings_its_own_luck() -> None:
    drafter = nano_drafter("eagle3", TARGET)
    engine = Engine(TARGET, drafter, "fixed:4", ROOMY)
    first, again, other = (engine.add([1, 2, 3], 20, name=name) for name in (-7, -7, 3))
    drain(engine)
    assert first.tokens == again.tokens != other.tokens


def test_a_response_ends_with_its_stop_token_or_its_length() -> None:
    plain = generate(TARGET, prompts(1), Decoding(15, temperature=0.0))[0]
    drafter = nano_drafter("ngram", TARGET)
    engine = Engine(TARGET, drafter, "fixed:4", ROOMY, sampling=GREEDY)
    stop = plain[6]
    stopped = engine.add(prompts(1)[0], 15, stop=stop)
    longest = engine.add(prompts(1)[0], 15)
    outputs = [output for report in drain(engine) for output in report.outputs]
    assert stopped.tokens == plain[: plain.index(stop) + 1]
    assert (stopped.finish_reason, longest.finish_reason) == ("stop", "length")
    for request in (stopped, longest):
        mine = [output for output in outputs if output.id == request.id]
        assert [token for output in mine for token in output.tokens] == request.tokens
        assert [output.finish_reason for output in mine[:-1]] == [None] * (len(mine) - 1)


def test_steps_keep_to_the_budget_and_slots() -> None:
    engine = Engine(TARGET, nano_drafter("dspark-rnn", TARGET), "fixed:4", TIGHT)
    for prompt in prompts(9):
        engine.add(prompt, 10)
    reports = drain(engine)
    assert max(report.batch_tokens for report in reports) <= 17
    assert max(report.num_running for report in reports) == engine.max_running == 3
    assert any(report.prefill_tokens and report.num_requests for report in reports)
    assert engine.idle
    assert engine.num_running == engine.num_waiting == 0


def test_a_long_prompt_is_computed_in_chunks_beside_decodes() -> None:
    limits = Limits(2, 10, 64)
    engine = Engine(TARGET, nano_drafter("eagle3", TARGET), "fixed:4", limits, sampling=GREEDY)
    short, long = engine.add([1, 2, 3], 20), engine.add(list(range(2, 42)), 8)
    chunks = [report.prefill_tokens for report in drain(engine)]
    assert chunks[:3] == [10, 5, 5]
    assert sum(chunks) == 43
    for request, prompt in ((short, [1, 2, 3]), (long, list(range(2, 42)))):
        c = Decoding(request.max_tokens, temperature=0.0)
        assert [request.tokens] == generate(TARGET, [prompt], c)


def test_an_aborted_request_frees_its_slot_for_the_next() -> None:
    drafter = nano_drafter("dspark-markov", TARGET)
    engine = Engine(TARGET, drafter, "fixed:4", Limits(1, 32, 64), sampling=GREEDY)
    first, second, third = (engine.add(prompt, 15) for prompt in prompts(3))
    for _ in range(3):
        engine.step()
    engine.abort(first.id)
    engine.abort(second.id)
    engine.abort(second.id)
    drain(engine)
    assert (first.finish_reason, second.finish_reason, second.slot) == ("abort", "abort", -1)
    assert [third.tokens] == generate(TARGET, prompts(3)[2:], Decoding(15, temperature=0.0))


def test_a_report_adds_up() -> None:
    drafter = nano_drafter("dspark-markov", TARGET)
    engine = Engine(TARGET, drafter, Recorder(), TIGHT)
    requests = [engine.add(prompt, 12) for prompt in prompts(7)]
    reports = drain(engine)
    for report in reports:
        assert report.batch_tokens == (
            report.num_requests + report.verify_tokens + report.prefill_tokens
        )
        assert report.accepted_tokens <= report.verify_tokens <= report.draft_tokens
        assert report.draft_tokens <= report.drafting_requests * report.draft_len
        assert len(report.accepted) == report.num_requests
        assert report.end_ns == report.start_ns + report.step_ns
    assert sum(report.output_tokens for report in reports) == 7 * 12
    assert sum(report.prefill_tokens for report in reports) == sum(map(len, prompts(7)))
    for name in ("draft_tokens", "verify_tokens", "accepted_tokens"):
        assert sum(getattr(r, name) for r in reports) == sum(getattr(r, name) for r in requests)


def test_the_kv_tokens_read_are_those_of_the_simulator() -> None:
    """Every decode's prompt and output so far, and every chunk up to its end."""
    engine = Engine(TARGET, None, "none", Limits(1, 4, 64))
    engine.add([1, 2, 3, 4, 5, 6], 3)
    assert [report.kv_tokens_read for report in drain(engine)] == [4, 6, 7, 8]


def test_a_policy_sees_what_a_scheduler_knows() -> None:
    recorder, drafter = Recorder(), nano_drafter("dspark-markov", TARGET)
    engine = Engine(TARGET, drafter, recorder, Limits(2, 64, 64), profile=PROFILE)
    for prompt in prompts(5):
        engine.add(prompt, 12)
    reports = [report for report in drain(engine) if report.num_requests]
    assert len(reports) == len(recorder.views)
    last: dict[int, tuple[Any, ...]] = {}
    for report, before, view in zip(reports, recorder.before, recorder.views, strict=True):
        assert list(view.request) == sorted(view.request)
        assert view.num_waiting == report.num_waiting
        assert view.prefill_tokens == report.prefill_tokens
        assert view.cost.fixed_ns == before.cost.fixed_ns == 500_000
        for row, request in enumerate(view.request):
            verify, accepted, history, steps = last.get(request, (-1, -1, np.ones((3, 4)), 0))
            assert view.last_verify_len[row] == verify
            assert view.last_accepted[row] == accepted <= max(verify, -1)
            assert np.array_equal(view.history[row], history)
            assert view.decode_steps[row] == steps
            assert view.context_tokens[row] == len(prompts(5)[request]) + view.output_tokens[row]
            assert not view.confidence[row, view.draft_len[row] :].any()
            if view.draft_len[row]:
                history = np.stack([view.survival[row], *history[:2]])
            last[request] = (*taken(report, view, row), history, steps + 1)


def taken(report: StepReport, view: SchedulerView, row: int) -> tuple[int, int]:
    """What a row of a view verified and had accepted; reports go by slot, views by admission."""
    verify = min(view.draft_len[row], (2 * view.request[row] + view.output_tokens[row]) % 4)
    by_id = {output.id: output for output in report.outputs}
    output = by_id[view.request[row]]
    if output.finish_reason is None:
        return verify, len(output.tokens) - 1
    return verify, -2


def test_a_drafter_that_is_not_used_costs_nothing() -> None:
    engine = Engine(TARGET, nano_drafter("dflash", TARGET), "none", ROOMY)
    engine.add([1, 2], 5)
    assert all(r.draft_tokens == r.drafting_requests == 0 for r in drain(engine))


def test_a_warm_up_leaves_no_trace() -> None:
    drafter = nano_drafter("dspark-markov", TARGET)
    cold, warm = (Engine(TARGET, drafter, "fixed:4", ROOMY) for _ in range(2))
    warm.warm_up()
    assert answers(cold) == answers(warm)
    warm.add([1], 2)
    with pytest.raises(UserError, match="before its first request"):
        warm.warm_up()


def test_a_closed_loop_keeps_its_concurrency_and_the_simulators_columns() -> None:
    drafter = nano_drafter("dspark-markov", TARGET)
    engine = Engine(TARGET, drafter, "fixed:4", Limits(8, 64, 64), sampling=GREEDY)
    engine.warm_up()
    lengths = [5 + i % 4 for i in range(12)]
    run = run_closed_loop(engine, prompts(12), 3, lengths, categories=["a", "b"] * 6)
    twin = simulate(Scenario(profile="dsv4-flash-b300-tp4", trace="synth:code", requests=3))
    assert list(run.requests.columns) == list(twin.requests.columns)
    assert set(STEP_COLUMNS) <= set(run.steps.columns)
    assert list(run.requests["output_tokens"]) == lengths == list(map(len, run.responses))
    assert (run.steps["num_running"] + run.steps["num_waiting"]).max() == 3
    plain = generate(TARGET, prompts(12), Decoding(8, temperature=0.0))
    assert run.responses == [text[:n] for text, n in zip(plain, lengths, strict=True)]
    times = run.requests[["arrival_s", "admitted_s", "first_token_s", "finish_s"]].to_numpy()
    assert (np.diff(times, axis=1) >= 0).all()
    assert times[0, 0] == 0
    assert run.window is not None
    assert 0 < run.window[0] < run.window[1] < run.steps["start_ns"].iloc[-1]
    chunks = run.requests["steps"].sum()
    assert run.gaps[:, 1].sum() == chunks
    parts = run.steps.filter(regex="^(host|draft|policy|verify|sample|extend)_ns$")
    assert (parts.sum(axis=1) == run.steps["step_ns"]).all()


def test_an_engine_measures_its_own_costs_for_policies_that_read_them() -> None:
    limits = Limits(4, 32, 256)
    for drafter in (nano_drafter("dspark-markov", TARGET), nano_drafter("eagle3", TARGET), None):
        profile = startup_profile(TARGET, drafter, limits)
        assert list(profile.verify["batch_tokens"]) == [1, 2, 4, 8, 16, 32]
        assert (profile.draft is None) == (drafter is None)
        assert profile.requests is not None
        assert (profile.verify["ms"] > 0).all()
        policy = "none" if drafter is None else "vllm"
        assert Engine(TARGET, drafter, policy, limits, profile=profile).idle


def test_sizes_double_up_to_the_last() -> None:
    assert [doubling(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([], 5, "the prompt is empty"),
        ([1, 64], 5, r"prompt tokens must lie in 0\.\.63"),
        ([1], 0, "max_tokens must be 1 or more, got 0"),
        ([1] * 60, 5, "a prompt of 60 tokens and max_tokens = 5 exceed the context length of 64"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused(
    prompt: list[int], max_tokens: int, message: str
) -> None:
    engine = Engine(TARGET, None, "none", ROOMY)
    with pytest.raises(UserError, match=message):
        engine.add(prompt, max_tokens)
    assert engine.idle


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("oracle", "policy 'oracle' knows true outcomes"),
        ("dspark", "policy 'dspark' needs step costs"),
        ("fixed:5", "policy 'fixed:5' wants 5 draft tokens, but the drafter drafts 4"),
        ("fixd", "unknown policy 'fixd'"),
    ],
)
def test_a_policy_that_cannot_run_for_real_is_refused(policy: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Engine(TARGET, nano_drafter("dflash", TARGET), policy, ROOMY)


def test_a_policy_that_drafts_needs_a_drafter() -> None:
    with pytest.raises(UserError, match="there is no drafter"):
        Engine(TARGET, None, "fixed:2", ROOMY)


@pytest.mark.parametrize("answer", [[1.0], [5], [1, 1], [-1]])
def test_a_policys_answer_is_checked(answer: list[Any]) -> None:
    class Odd:
        def verify_lengths(self, view: SchedulerView) -> np.ndarray:
            return np.array(answer)

    engine = Engine(TARGET, nano_drafter("dflash", TARGET), Odd(), ROOMY)
    engine.add([1, 2, 3], 8)
    engine.step()
    with pytest.raises(UserError, match="policy 'Odd': verify_lengths"):
        engine.step()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be 1 or more, got 0"),
        ({"max_model_len": 1}, "max_model_len must be 2 or more, got 1"),
        ({"max_num_batched_tokens": 4}, "cannot hold one request with 4 draft tokens"),
    ],
)
def test_limits_that_leave_no_room_are_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Engine(TARGET, nano_drafter("dflash", TARGET), "fixed:4", Limits(**values))


def test_ways_of_drawing_have_bounds_and_cold_ones_are_greedy() -> None:
    assert Sampling(1e-5) == Sampling(0.0)
    with pytest.raises(UserError, match=r"temperature must lie in 0\.\.100, got -1"):
        Sampling(-1.0)
    with pytest.raises(UserError, match="top_p must lie above 0 and be at most 1, got 0"):
        Sampling(1.0, 0.0)
