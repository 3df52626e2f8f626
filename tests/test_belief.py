"""What the policy believes of its drafter: drift, then temperatures, and never the truth."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_simulator import Twin
from scenarios import Case, cases, make_profile, make_trace
from small_recording import GAMMA, recording_frame

from dspark_sim.acceptance import (
    MixedAcceptance,
    RecordedAcceptance,
    SequentialTemperatureScaling,
    load_acceptance,
    write_temperatures,
)
from dspark_sim.config import Belief, Scenario
from dspark_sim.core import UserError
from dspark_sim.simulator.result import to_json
from dspark_sim.simulator.setup import believed_temperatures

CHAT = load_acceptance("chat-dspark")
TAPE = RecordedAcceptance("tape", recording_frame(), GAMMA)
SOURCES = {
    "law": CHAT,
    "recording": TAPE,
    "mixture": MixedAcceptance("mix", {"math": TAPE, "chat": CHAT}),
}
UNEVEN = (1.7, 0.6, 3.0)


@pytest.fixture
def file(tmp_path):
    """Write temperatures and return their path."""

    def write(*temperatures):
        write_temperatures(SequentialTemperatureScaling(temperatures), tmp_path / "sts.json")
        return str(tmp_path / "sts.json")

    return write


def busy(source, policy="dspark", **belief):
    """Return 40 requests of two categories that overlap; every drafted token costs time."""
    draw = np.random.default_rng(3)
    trace = make_trace(
        np.cumsum(draw.integers(0, 4, 40)) / 1000,
        draw.integers(5, 60, 40),
        draw.integers(1, 60, 40),
    )
    rows = trace.requests.assign(category=np.array(["math", "chat"])[np.arange(40) % 2])
    scenario = Scenario(
        profile="toy", policy=policy, num_speculative_tokens=GAMMA, belief=Belief(**belief)
    )
    return Case(scenario, replace(trace, requests=rows), make_profile(max_num_seqs=12), source)


def outcome(result):
    """Return all that a run gives, its configuration apart."""
    tables = (result.requests, result.steps, pd.DataFrame(result.gaps))
    return (to_json(result.summary), *(table.to_csv(index=False) for table in tables))


class Watching:
    """A policy that keeps what it sees and verifies whatever the confidences say."""

    def __init__(self, gamma):
        self.max_draft_len, self.views = gamma, []

    def verify_lengths(self, view):
        self.views.append(view)
        return np.minimum(view.draft_len, view.output_tokens % 4)


def confidences(case):
    """Return every confidence that a policy is shown, one block a row."""
    policy = Watching(case.gamma)
    case.run(policy)
    return np.concatenate([view.confidence for view in policy.views])


@pytest.mark.parametrize("policy", ["dspark", "dspark-async", "vllm", "threshold:0.6", "oracle"])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_calibrated_confidences_give_the_same_bits_step_by_step(file, source, policy):
    case = busy(source, policy, temperatures=file(*UNEVEN), confidence_scale=1.4)
    assert outcome(case.run()) == outcome(case.run(stepwise=True))


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_temperature_one_everywhere_changes_no_byte(file, source):
    plain, calibrated = busy(source), busy(source, temperatures=file(1.0, 1.0, 1.0))
    assert outcome(plain.run()) == outcome(calibrated.run())


@pytest.mark.parametrize("scale", [0.4, 1.8])
def test_temperatures_restore_the_decisions_that_a_wrong_scale_spoilt(file, scale):
    truth = outcome(busy(CHAT).run())
    distorted = replace(CHAT, confidence_scale=scale)
    assert outcome(busy(distorted).run()) != truth
    calibrated = busy(distorted, temperatures=file(scale, scale, scale))
    assert outcome(calibrated.run()) == truth


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_temperatures_undo_drift_of_any_source(file, source):
    drifted = busy(source, confidence_scale=2.5, temperatures=file(2.5, 2.5, 2.5))
    assert outcome(drifted.run()) == outcome(busy(source).run())


def test_drift_comes_before_temperatures_at_each_position(file):
    frame = recording_frame().assign(confidence=[[0.75, 0.9, 0.5]] * len(recording_frame()))
    tape = RecordedAcceptance("tape", frame, GAMMA)
    drift = {"confidence_scale": 2.0, "confidence_bias": np.log(4 / 3)}
    seen = confidences(busy(tape, temperatures=file(2.0, 1.0, 4.0), **drift))
    odds = [12**0.5, 108.0, (4 / 3) ** 0.25]  # 0.75: odds 3, squared and times 4/3 are 12
    wanted = [o / (1 + o) for o in odds]
    np.testing.assert_allclose(seen, np.tile(wanted, (len(seen), 1)), rtol=1e-6)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_policy_sees_what_the_calibration_measures(file, source):
    temperatures = file(*UNEVEN)
    raw = confidences(busy(source))
    expected = SequentialTemperatureScaling(UNEVEN).apply(raw)
    seen = confidences(busy(source, temperatures=temperatures))
    np.testing.assert_allclose(seen, expected, rtol=1e-10)


def test_the_truth_is_untouched(file):
    shaken = busy(TAPE, "fixed:3", temperatures=file(5.0, 0.2, 5.0))
    assert outcome(shaken.run()) == outcome(busy(TAPE, "fixed:3").run())


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    cases(policies=("fixed:3",)),
    st.lists(st.floats(0.2, 5.0), min_size=3, max_size=4),
    st.floats(0.3, 3.0),
    st.floats(-1.0, 1.0),
)
def test_the_twin_shows_a_policy_the_same_confidences(
    tmp_path_factory, case, temperatures, scale, bias
):
    path = tmp_path_factory.mktemp("sts") / "sts.json"
    write_temperatures(SequentialTemperatureScaling(tuple(temperatures)), path)
    drift = {"confidence_scale": scale, "confidence_bias": bias, "temperatures": str(path)}
    belief = case.scenario.belief.model_copy(update=drift)
    case = replace(case, scenario=case.scenario.model_copy(update={"belief": belief}))
    policy, shadow = Watching(3), Watching(3)
    case.run(policy)
    Twin(case.scenario, case.trace, case.profile, case.source, shadow).run()
    assert len(policy.views) == len(shadow.views)
    for got, wanted in zip(policy.views, shadow.views, strict=True):
        np.testing.assert_allclose(got.confidence, wanted.confidence, rtol=1e-9)
        np.testing.assert_allclose(got.history, wanted.history, rtol=1e-9)


def test_recorded_temperatures_are_those_of_a_file(file):
    kept = replace(TAPE, temperatures=UNEVEN)
    recorded = busy(kept, temperatures="recorded").run()
    assert outcome(recorded) == outcome(busy(TAPE, temperatures=file(*UNEVEN)).run())
    assert recorded.config["temperatures"] == UNEVEN
    assert outcome(recorded) != outcome(busy(kept).run())


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_temperatures_that_nobody_recorded_are_told(source):
    with pytest.raises(UserError, match=f"'{source.name}' is no recording that keeps sts_temp"):
        busy(source, temperatures="recorded").run()


@pytest.mark.parametrize(("policy", "needed"), [("none", 0), ("fixed:2", 2), ("fixed:3", 3)])
def test_as_many_temperatures_as_drafted_tokens_are_needed(file, policy, needed):
    belief = Belief(temperatures=file(*[1.5] * max(needed, 1)))
    assert believed_temperatures(belief, CHAT, needed) == (1.5,) * needed
    busy(CHAT, policy, temperatures=belief.temperatures).run()
    with pytest.raises(UserError, match=r"sts\.json' holds \d temp.* but 4 tokens are drafted"):
        believed_temperatures(belief, CHAT, 4)


def test_a_run_does_not_remember_the_temperatures_of_another(file):
    plain, path = outcome(busy(CHAT).run()), file(*UNEVEN)
    first = outcome(busy(CHAT, temperatures=path).run())
    assert outcome(busy(CHAT).run()) == plain != first
    assert outcome(busy(CHAT, temperatures=path).run()) == first


def test_the_temperatures_and_their_hash_are_in_the_config(file):
    configs = [busy(CHAT, temperatures=file(t, 1.0, 1.0, 9.0)).run().config for t in (2.0, 3.0)]
    found = [json.loads(to_json(config)) for config in configs]
    assert [config["temperatures"] for config in found] == [[2.0, 1.0, 1.0], [3.0, 1.0, 1.0]]
    assert found[0]["scenario"]["belief"]["temperatures"].endswith("sts.json")
    assert found[0]["hashes"]["temperatures"] != found[1]["hashes"]["temperatures"]
    plain = busy(CHAT).run().config
    assert (plain["temperatures"], plain["hashes"]["temperatures"]) == (None, None)


def test_a_path_is_relative_to_the_current_folder(file, tmp_path, monkeypatch):
    file(*UNEVEN)
    monkeypatch.chdir(tmp_path)
    source = busy(CHAT, temperatures="sts.json")
    assert outcome(source.run()) == outcome(busy(CHAT, temperatures=file(*UNEVEN)).run())
