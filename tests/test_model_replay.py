"""Real speculation against a simulation of its recording, on the shipped pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")
pytest.importorskip("tokenizers", reason="the extra `model` (tokenizers) is not installed")

from scenarios import make_profile, make_trace

from dspark_sim.acceptance import RecordedAcceptance, load_acceptance
from dspark_sim.acceptance.ratio import ratio_with_error
from dspark_sim.config import Scenario
from dspark_sim.model.corpus import DOMAINS, FORMAT, chat_prompt
from dspark_sim.model.generate import Decoding, generate
from dspark_sim.model.policy_lengths import policy_lengths
from dspark_sim.model.record import Response, record
from dspark_sim.model.recordings import RecordingPlan, held_out_responses
from dspark_sim.model.speculate import speculate
from dspark_sim.model.weights import load_drafter, load_target
from dspark_sim.simulator import Inputs, simulate

POSITIONS, GAMMA = 64, 7
RULES = ("fixed:3", "fixed:7", "threshold:0.6")
DRAFTERS = ("dspark-markov", "dflash", "eagle3")
CORPORA = Path(__file__).parents[2] / "shared" / "data" / "corpora"
ASKED = {
    "math": "Tom has 12 apples and buys {} more. He eats 2. How many apples are left?",
    "code": "Write a Python function that adds {} to every number of a list.",
    "chat": "Hi! I have {} cats. What do you like to do?",
}


@pytest.fixture(scope="module")
def pair():
    target, tokenizer = load_target("tiny")
    return target, tokenizer, {name: load_drafter(name, target) for name in DRAFTERS}


def answers(pair, count: int, temperature: float, seed: int = 0) -> list[Response]:
    target, tokenizer, _ = pair
    asked = [
        (domain, tokenizer.encode(chat_prompt([ASKED[domain].format(number)])).ids)
        for domain in DOMAINS
        for number in range(3, 3 + count)
    ]
    tokens = POSITIONS + GAMMA - 1
    given = generate(target, [ids for _, ids in asked], Decoding(tokens, temperature, seed=seed))
    return [
        Response(f"r{i:03d}", domain, tuple(ids), tuple(answer))
        for i, ((domain, ids), answer) in enumerate(zip(asked, given, strict=True))
    ]


def real_passes(pair, name: str, responses: list[Response], rule: str) -> list[int]:
    """Target passes of the real loop after the prefill, for POSITIONS tokens of each response."""
    target, _, drafters = pair
    result = speculate(
        target,
        drafters[name],
        [r.prompt for r in responses],
        Decoding(POSITIONS, temperature=0.0),
        policy_lengths(rule, GAMMA),
    )
    assert result.responses == [list(r.answer[:POSITIONS]) for r in responses]
    return np.bincount([r.request for r in result.records]).tolist()


def simulated_steps(source: RecordedAcceptance, rule: str) -> int:
    """Steps of one request alone that is served the recording's only mapped response."""
    result = simulate(
        Scenario(profile="given", policy=rule, concurrency=1, prefill={"mode": "none"}),
        Inputs(
            trace=make_trace([0.0], [16], [POSITIONS]), profile=make_profile(), acceptance=source
        ),
    )
    return int(result.requests["steps"].iloc[0])


def only(frame, request_id: str) -> RecordedAcceptance:
    return RecordedAcceptance("given", frame, GAMMA, mapping={0: request_id})


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_simulation_of_a_greedy_recording_takes_the_real_loops_target_passes(pair, name) -> None:
    target, _, drafters = pair
    responses = answers(pair, 2, temperature=0.0)
    frame = record(target, {name: drafters[name]}, responses, Decoding(0, temperature=0.0))[name]
    for rule in RULES:
        steps = [simulated_steps(only(frame, r.request_id), rule) for r in responses]
        assert steps == real_passes(pair, name, responses, rule)


@pytest.fixture(scope="module")
def sampled(pair):
    """Answers at temperature 1 and their recording, each request mapped to its own."""
    target, _, drafters = pair
    asked = answers(pair, 24, temperature=1.0, seed=1)
    frames = record(target, {"d": drafters["dspark-markov"]}, asked, Decoding(0, seed=3))
    mapping = {i: r.request_id for i, r in enumerate(asked)}
    return asked, RecordedAcceptance("given", frames["d"], GAMMA, mapping=mapping)


@pytest.mark.parametrize("rule", RULES)
def test_sampled_speculation_and_its_replay_agree_within_their_intervals(
    pair, sampled, rule
) -> None:
    target, _, drafters = pair
    asked, source = sampled
    count = len(asked)
    real = speculate(
        target,
        drafters["dspark-markov"],
        [r.prompt for r in asked],
        Decoding(POSITIONS + GAMMA, seed=2),
        policy_lengths(rule, GAMMA),
    )
    rounds = [r for r in real.records if r.position < POSITIONS]
    truth, truth_se = ratio_with_error(
        np.array([1.0 + r.accepted for r in rounds]), np.array([r.request for r in rounds])
    )
    result = simulate(
        Scenario(profile="given", policy=rule, concurrency=1, prefill={"mode": "none"}),
        Inputs(
            trace=make_trace([0.0] * count, [16] * count, [POSITIONS] * count),
            profile=make_profile(),
            acceptance=source,
        ),
    )
    steps, tokens = result.requests["steps"].to_numpy(), np.full(count, POSITIONS - 1.0)
    replayed = tokens.sum() / steps.sum()
    replayed_se = np.std(tokens - replayed * steps, ddof=1) / np.sqrt(count) / steps.mean()
    cut = (GAMMA + 1) / POSITIONS  # a simulated request's last step may commit less
    assert abs(replayed - truth) < 3 * np.hypot(truth_se, replayed_se) + cut


@pytest.mark.slow
@pytest.mark.skipif(not CORPORA.is_dir(), reason="the prompts of the shipped recordings are absent")
@pytest.mark.parametrize("name", DRAFTERS)
def test_shipped_greedy_recordings_are_the_real_loop_on_their_responses(pair, name) -> None:
    target, tokenizer, _ = pair
    shipped = load_acceptance(f"tiny-{name}-t0", GAMMA)
    plan = RecordingPlan(temperature=0.0, responses=4, corpora=CORPORA)
    c = Decoding(POSITIONS + GAMMA - 1, 0.0, stop=FORMAT.end)
    responses = held_out_responses(target, tokenizer, "tiny", c, plan)[0]
    for rule in RULES:
        steps = [simulated_steps(only(shipped.frame, r.request_id), rule) for r in responses]
        assert steps == real_passes(pair, name, responses, rule)
