"""The switch `conf`: what a policy is shown in place of the drafter's own confidences."""

import json
from dataclasses import replace

import numpy as np
import pytest
from policy_steps import step_view
from scipy.special import expit, logit

from dspark_sim.core import UserError
from dspark_sim.policies import is_lossless, load_policy
from dspark_sim.policies.calibration_maps import OnlineTemperatures, Platt
from dspark_sim.policies.token_bins import TokenBins

FLAT = [0] + [10] * 60


def played(learner, rng, temperature=1.0, shift=0.0, steps=400, num=16, gamma=3, verify=None):
    """Let a learner watch drafts whose truth is sigmoid((z + shift) / temperature)."""
    for _ in range(steps):
        reported = expit(rng.normal(1.0, 1.5, (num, gamma)))
        truth = expit((logit(reported) + shift) / temperature)
        accepted = (np.cumprod(rng.random((num, gamma)) < truth, axis=1)).sum(axis=1)
        verified = np.full(num, gamma) if verify is None else verify(reported)
        learner.learn(reported, verified, np.minimum(accepted, verified))
    return learner


def test_only_tokens_that_were_reached_and_verified_are_counted():
    bins = TokenBins(3)
    confidence = np.full((3, 3), 0.6)
    bins.add(confidence, verified=np.array([3, 2, 0]), accepted=np.array([1, 2, 0]))
    assert bins.tested.sum(axis=1).tolist() == [2, 2, 0]
    assert bins.accepted.sum(axis=1).tolist() == [2, 1, 0]
    assert bins.mean_logit[0].max() == pytest.approx(logit(0.6))


@pytest.mark.parametrize("true", [0.5, 1.0, 2.0])
def test_online_sts_finds_the_temperature(true):
    learner = played(OnlineTemperatures(3), np.random.default_rng(0), temperature=true)
    assert learner.temperatures == pytest.approx(np.full(3, true), rel=0.2)


def test_platt_finds_slope_and_offset():
    learner = played(Platt(3), np.random.default_rng(1), temperature=2.0, shift=-1.0)
    assert learner.slope == pytest.approx(np.full(3, 0.5), abs=0.08)
    assert learner.offset == pytest.approx(np.full(3, -0.5), abs=0.15)


def test_trimming_by_confidence_does_not_mislead_platt():
    """Verified tokens are confident ones, but given its confidence a token's odds stay."""
    learner = played(
        Platt(3),
        np.random.default_rng(2),
        shift=-1.0,
        verify=lambda reported: np.cumprod(reported > 0.6, axis=1).sum(axis=1),
    )
    at_80 = expit(learner.slope * logit(0.8) + learner.offset)
    assert at_80 == pytest.approx(np.full(3, expit(logit(0.8) - 1.0)), abs=0.05)


def test_platt_leaves_a_position_with_few_tests_alone():
    learner = Platt(2)
    for _ in range(100):
        learner.learn(np.array([[0.9, 0.9]]), np.array([1]), np.array([0]))
    assert learner.slope[1] == 1.0
    assert learner.offset[1] == 0.0
    assert learner.offset[0] < -0.5


def test_platt_may_be_fitted_early():
    rng = np.random.default_rng(3)
    late, early = (
        played(Platt(3, early=e), rng, shift=-2.0, steps=4, num=256) for e in (False, True)
    )
    assert late.offset.tolist() == [0.0, 0.0, 0.0]
    assert early.offset == pytest.approx(np.full(3, -2.0), abs=0.6)


def test_a_file_of_temperatures_is_applied_and_certainty_stays(tmp_path):
    path = tmp_path / "sts.json"
    path.write_text(json.dumps({"temperatures": [2.0, 0.5, 1.0]}))
    policy = load_policy(f"threshold:0.6,conf={path}", 3)
    cooled = step_view([[0.69, 0.9, 0.9], [0.7, 0.55, 0.9], [0.7, 0.56, 1.0]], FLAT)
    # σ(logit(0.69) / 2) = 0.5987; σ(logit(0.7) / 2) = 0.604; σ(2 logit(0.55)) = 0.599.
    assert policy.verify_lengths(cooled).tolist() == [0, 1, 3]


def test_an_ema_smooths_a_requests_own_confidence():
    policy = load_policy("threshold:0.5,conf=ema", 1)
    assert policy.verify_lengths(step_view([[0.9]], FLAT)).tolist() == [1]
    # 0.8 · 0.41 + 0.2 · 0.9 = 0.508, then 0.8 · 0.41 + 0.2 · 0.508 = 0.43.
    again = replace(step_view([[0.41]], FLAT), last_verify_len=np.array([1]))
    assert policy.verify_lengths(again).tolist() == [1]
    assert policy.verify_lengths(again).tolist() == [0]


def test_an_old_survival_is_shown_as_it_was_mapped(tmp_path):
    path = tmp_path / "sts.json"
    path.write_text(json.dumps({"temperatures": [0.1, 0.1]}))
    # One token pays if its survival exceeds 0.7. The old confidence 0.6 counts σ(10 logit) = 0.98.
    costs, old = [0, 10, 17, 40], np.full((1, 3, 2), 0.6)
    first, second = (step_view([[0.6, 0.1]], costs, history=h) for h in (np.ones((1, 3, 2)), old))
    second = replace(second, last_verify_len=np.array([1]), last_accepted=np.array([1]))
    shown, raw = (load_policy(f"vllm:{conf}", 2) for conf in (f"conf={path}", "conf=raw"))
    assert [shown.verify_lengths(v).tolist() for v in (first, second)] == [[1], [1]]
    assert [raw.verify_lengths(v).tolist() for v in (first, second)] == [[1], [0]]


def test_a_map_keeps_whether_a_rule_is_lossless_and_how_it_reads_costs():
    assert is_lossless("vllm:conf=platt")
    assert not is_lossless("vllm:conf=platt,lag=0")
    assert load_policy("vllm:conf=platt").believes == "monotone"
    assert load_policy("tetris:2,conf=ema").max_draft_len == 4


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fixed:3,conf=platt", "conf changes the drafter's confidences, and fixed reads none"),
        ("oracle:conf=platt", "conf changes .*, and oracle reads none"),
        ("vllm:conf=plat", "unknown value of conf 'plat'.*did you mean 'platt'"),
        ("vllm:conf=none.json", "none.json cannot be read"),
    ],
)
def test_a_source_that_means_nothing_is_refused(spec, message):
    with pytest.raises(UserError, match=message):
        load_policy(spec)


@pytest.mark.parametrize("text", ["{}", "[1]", '{"temperatures": [1, -1]}', "no json"])
def test_a_file_without_enough_temperatures_is_refused(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(UserError, match=r"must hold a list 'temperatures' of 7 positive"):
        load_policy(f"vllm:conf={tmp_path / 't.json'}")
