import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import make_profile, make_trace

from dspark_sim.acceptance import RecordedAcceptance, load_acceptance
from dspark_sim.acceptance.calibration import Blocks
from dspark_sim.acceptance.replay import replay, threshold_lengths
from dspark_sim.acceptance.responses import draw_responses
from dspark_sim.config import Scenario
from dspark_sim.core import UserError
from dspark_sim.simulator import Inputs, simulate

# Two responses of seven and four positions, blocks of three. Rounds of whole blocks by hand:
# response 0 at 1 (accepts 2), 4 (0), 5 (3); response 1 at 1 (0), 2 (1).
ACCEPTED = [3, 2, 1, 0, 0, 3, 1, 2, 0, 1, 3]
RESPONSE = [0] * 7 + [1] * 4


def blocks(accepted=ACCEPTED, response=RESPONSE, gamma=3, confidence=None):
    if confidence is None:
        confidence = np.full((len(accepted), gamma), 0.5)
    return Blocks(np.asarray(confidence), np.array(accepted), np.array(response))


def rows(rounds):
    columns = (rounds.response, rounds.position, rounds.verified, rounds.accepted)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_whole_blocks_are_replayed_as_by_hand():
    rounds = replay(blocks())
    assert rows(rounds) == [(0, 1, 3, 2), (0, 4, 3, 0), (0, 5, 3, 3), (1, 1, 3, 0), (1, 2, 3, 1)]
    length, error = rounds.acceptance_length()
    assert length == pytest.approx(11 / 5)
    # Response sums 8 and 3, counts 3 and 2: deviations ±1.4, mean count 2.5.
    assert error == pytest.approx(1.4 * np.sqrt(2) / np.sqrt(2) / 2.5)


def test_a_fixed_length_moves_on_by_what_it_verified():
    assert rows(replay(blocks(), 1)) == [
        (0, 1, 1, 1), (0, 3, 1, 0), (0, 4, 1, 0), (0, 5, 1, 1), (1, 1, 1, 0), (1, 2, 1, 1),
    ]  # fmt: skip
    assert len(replay(blocks(), 0)) == 6 + 3
    assert rows(replay(blocks(), 9)) == rows(replay(blocks()))


def test_a_length_of_its_own_for_every_block_is_used_where_rounds_begin():
    lengths = np.array([0, 2, 0, 0, 0, 1, 3, 0, 3, 0, 3])
    assert rows(replay(blocks(), lengths)) == [
        (0, 1, 2, 2), (0, 4, 0, 0), (0, 5, 1, 1), (1, 1, 3, 0), (1, 2, 0, 0), (1, 3, 3, 3),
    ]  # fmt: skip


def test_conditional_acceptance_is_as_computed_by_hand():
    table = replay(blocks()).conditional()
    assert table["position"].tolist() == [1, 2, 3]
    assert table["reached"].tolist() == [5, 3, 2]
    assert table["accepted"].tolist() == [3, 2, 1]
    assert table["conditional"].tolist() == pytest.approx([3 / 5, 2 / 3, 1 / 2])
    assert np.isnan(table["standard_error"][2])  # both rounds are of one response


def test_a_position_is_judged_by_the_rounds_that_verified_it():
    table = replay(blocks(), 1).conditional()
    assert table["reached"].tolist() == [6, 0, 0]
    assert table["accepted"].tolist() == [3, 0, 0]
    assert table["conditional"].tolist() == pytest.approx([1 / 2, np.nan, np.nan], nan_ok=True)


def test_the_rounds_of_some_responses_are_theirs_alone():
    rounds = replay(blocks())
    assert rows(rounds.of(np.array([False, True]))) == rows(rounds)[3:]


def test_a_response_of_one_position_has_no_round():
    assert rows(replay(blocks([3, 1, 2], [0, 1, 1]))) == [(1, 1, 3, 2)]
    assert len(replay(blocks([], [], confidence=np.zeros((0, 3))))) == 0


@pytest.mark.parametrize(
    ("verify_len", "sentence"),
    [(-1, "0 or more, got -1"), ([1, 2], "each of 11 blocks"), (1.5, "one whole number")],
)
def test_lengths_that_make_no_sense_are_told(verify_len, sentence):
    with pytest.raises(UserError, match=sentence):
        replay(blocks(), verify_len)


def test_a_threshold_keeps_tokens_before_the_first_below_it():
    confidence = np.array([[0.9, 0.5, 0.9], [0.4, 0.9, 0.9], [0.5, 0.5, 0.5]])
    assert threshold_lengths(confidence, 0.5).tolist() == [3, 0, 3]
    assert threshold_lengths(confidence, 0.6).tolist() == [1, 0, 0]
    assert threshold_lengths(confidence, 0.0).tolist() == [3, 3, 3]
    for wrong in (1.01, -0.1, np.nan):
        with pytest.raises(UserError, match=r"threshold lies in 0\.\.1"):
            threshold_lengths(confidence, wrong)


def walk(accepted, lengths):
    """Rounds of one response by a loop."""
    position, found = 1, []
    while position < len(accepted):
        found.append((position, min(accepted[position], lengths[position])))
        position += 1 + found[-1][1]
    return found


@st.composite
def recorded(draw):
    gamma = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    count = sum(sizes)
    accepted = draw(st.lists(st.integers(0, gamma), min_size=count, max_size=count))
    levels = st.sampled_from([0.0, 0.3, 0.35, 0.7, 1.0])
    confidence = draw(
        st.lists(st.lists(levels, min_size=gamma, max_size=gamma), min_size=count, max_size=count)
    )
    return blocks(accepted, np.repeat(np.arange(len(sizes)), sizes), gamma, confidence)


@given(recorded(), st.sampled_from([None, 0, 2, 0.3, 0.7]))
def test_replay_is_the_loop_over_rounds(drawn, rule):
    gamma = drawn.confidence.shape[1]
    if isinstance(rule, float):
        lengths = rule = threshold_lengths(drawn.confidence, rule)
    else:
        lengths = np.full(len(drawn.accepted), gamma if rule is None else rule)
    rounds = replay(drawn, rule)
    for response in np.unique(drawn.request):
        of = drawn.request == response
        mine = rounds.response == response
        found = zip(rounds.position[mine].tolist(), rounds.accepted[mine].tolist(), strict=True)
        assert list(found) == walk(drawn.accepted[of].tolist(), lengths[of].tolist())


@given(recorded(), st.sampled_from([0.0, 0.3, 0.35, 0.7, 1.0]), st.floats(0.0, 1.0))
def test_rounds_keep_their_bounds_and_a_higher_threshold_never_verifies_more(drawn, low, high):
    low, high = sorted((low, high))
    gamma = drawn.confidence.shape[1]
    few, many = (threshold_lengths(drawn.confidence, t) for t in (high, low))
    assert (few <= many).all()
    for verify_len in (None, few, many, 1):
        rounds = replay(drawn, verify_len)
        assert (rounds.accepted <= rounds.verified).all()
        assert (rounds.verified <= gamma).all()
        if len(rounds):
            assert 1.0 <= rounds.acceptance_length()[0] <= gamma + 1.0
    whole = replay(drawn)
    table = whole.conditional()
    if len(whole) and table["reached"].all():
        products = np.cumprod(table["conditional"])
        assert whole.acceptance_length()[0] == pytest.approx(1 + products.sum())


@pytest.mark.parametrize("policy", ["fixed:7", "fixed:3", "threshold:0.6", "threshold:0.7"])
@pytest.mark.parametrize("name", ["tiny-dspark-markov-t1", "tiny-eagle3-t0"])
def test_the_simulator_takes_the_same_steps_for_each_response(name, policy):
    source = load_acceptance(name)
    assert isinstance(source, RecordedAcceptance)
    kept = sorted(source.frame["request_id"].unique())[::6]
    frame = source.frame[source.frame["request_id"].isin(kept)]
    mapping = {index: str(response) for index, response in enumerate(kept)}
    source = RecordedAcceptance(name, frame, source.draft_len, mapping)
    lengths = frame.groupby("request_id").size().loc[kept]
    run = simulate(
        Scenario(profile="toy", policy=policy, concurrency=1, prefill={"mode": "none"}),
        Inputs(make_trace([0.0] * len(kept), 10, lengths.to_numpy()), make_profile(), source),
    )
    drawn = draw_responses(source).blocks
    rule, _, number = policy.partition(":")
    confidence = drawn.confidence
    verify = threshold_lengths(confidence, float(number)) if rule == "threshold" else int(number)
    rounds = replay(drawn, verify)
    columns = {"verify_tokens": rounds.verified, "accepted_tokens": rounds.accepted}
    replayed = pd.DataFrame(columns).groupby(rounds.response).sum()
    replayed["steps"] = np.bincount(rounds.response)
    for column in ("steps", "verify_tokens", "accepted_tokens"):
        assert run.requests[column].tolist() == replayed[column].tolist()
