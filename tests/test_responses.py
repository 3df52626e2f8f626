import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_recording import GAMMA, KINDS, recording_frame

from dspark_sim.acceptance import (
    MixedAcceptance,
    RecordedAcceptance,
    acceptance_lengths,
    conditional_acceptance,
    draw_responses,
    load_acceptance,
    replay,
    sweep_thresholds,
    threshold_lengths,
)
from dspark_sim.acceptance.responses import SWEEP_COLUMNS, THRESHOLDS
from dspark_sim.core import UserError


def responses(frame=None):
    frame = recording_frame() if frame is None else frame
    return draw_responses(RecordedAcceptance("sample", frame, GAMMA))


def plain(kinds=KINDS):
    return recording_frame(kinds).assign(confidence=None)


def test_every_response_comes_once_in_full_with_its_category():
    drawn = responses()
    assert np.bincount(drawn.blocks.request).tolist() == [4, 7, 1, 5]
    assert drawn.category.tolist() == ["math", "chat", "chat", "math"]
    assert drawn.blocks.accepted.tolist() == recording_frame()["accepted"].tolist()


def test_the_lengths_of_four_responses_are_as_computed_by_hand():
    # Accepted at positions 0, 1, …: a 0 2 0 2, b 1 3 1 3 1 3 1, c 2, d 3 1 3 1 3.
    # Rounds: a at 1 (2), b at 1 (3) and 5 (3), c none, d at 1 (1) and 3 (1).
    table = acceptance_lengths(responses()).set_index("category")
    assert list(table.index) == ["chat", "math", "all"]
    assert table["responses"].tolist() == [2, 2, 4]
    assert table["rounds"].tolist() == [2, 3, 5]
    assert table["acceptance_length"].tolist() == pytest.approx([4.0, 7 / 3, 3.0])
    # math: sums 3 and 4, counts 1 and 2: deviations ±2/3, mean count 3/2.
    assert table.loc["math", "standard_error"] == pytest.approx(2 / 3 / 1.5)
    assert np.isnan(table.loc["chat", "standard_error"])


def test_conditional_acceptance_is_by_category_with_its_counts():
    table = conditional_acceptance(responses()).set_index(["category", "position"])
    assert table.loc["math", "reached"].tolist() == [3, 3, 1]
    assert table.loc["math", "accepted"].tolist() == [3, 1, 0]
    assert table.loc["all", "conditional"].tolist() == pytest.approx([1.0, 3 / 5, 2 / 3])


def test_a_recording_without_categories_has_the_row_of_all_alone():
    for kinds in (dict.fromkeys(KINDS, ""), dict.fromkeys(KINDS, "all")):
        assert acceptance_lengths(responses(plain(kinds)))["category"].tolist() == ["all"]


def test_a_category_without_a_round_has_no_length():
    kinds = KINDS | {"c": "code"}
    drawn = responses(recording_frame(kinds))
    table = acceptance_lengths(drawn).set_index("category")
    assert (table.loc["code", "responses"], table.loc["code", "rounds"]) == (1, 0)
    assert np.isnan(table.loc["code", "acceptance_length"])
    swept = sweep_thresholds(drawn, [0.5]).set_index("category")
    assert swept.loc["code"].drop(["threshold", "rounds"]).isna().all()


def test_the_sweep_says_what_a_threshold_verifies():
    table = sweep_thresholds(responses())
    assert tuple(table) == SWEEP_COLUMNS
    whole = table[table["category"] == "all"].set_index("threshold")
    assert tuple(whole.index) == THRESHOLDS
    # Threshold 0 verifies all of 5 rounds, 10 of whose 15 drafts are accepted; the bonus makes it
    # 15 of 20.
    assert whole.loc[0.0, "rounds"] == 5
    assert whole.loc[0.0, "acceptance_rate"] == pytest.approx(10 / 15)
    assert whole.loc[0.0, "paper_acceptance"] == pytest.approx(15 / 20)
    # Position 0 of response a has confidence 0, the other responses' first is below 0.25.
    assert whole.loc[0.25, "rounds"] == 3 + 6 + 0 + 4
    assert whole.loc[0.25, "verified"] == 0.0
    assert np.isnan(whole.loc[0.25, "acceptance_rate"])
    assert whole.loc[0.25, "paper_acceptance"] == 1.0


def test_without_confidences_there_is_no_sweep():
    with pytest.raises(UserError, match="no confidence"):
        sweep_thresholds(responses(plain()))


def test_a_law_has_requests_and_a_mixture_has_its_categories():
    law = draw_responses(load_acceptance("chat-dspark"))
    table = acceptance_lengths(law)
    assert table["category"].tolist() == ["all"]
    truth = 1 + np.cumprod(load_acceptance("chat-dspark").rates).sum()
    low, error = table.loc[0, ["acceptance_length", "standard_error"]]
    assert abs(low - truth) < 4 * error
    mixed = draw_responses(load_acceptance("mix:math=math-dspark,default=chat-dspark"))
    table = acceptance_lengths(mixed).set_index("category")
    assert table["responses"].to_dict() == {"math": 200, "all": 400}


def test_a_mixture_reports_confidence_where_all_its_parts_do():
    law = load_acceptance("chat-dspark")
    silent = RecordedAcceptance("plain", plain(), GAMMA)
    for default in (None, law):
        assert draw_responses(MixedAcceptance("m", {"chat": law}, default), 3).has_confidence
    assert not draw_responses(MixedAcceptance("m", {"chat": law}, silent)).has_confidence
    assert not draw_responses(MixedAcceptance("m", {"chat": silent})).has_confidence


def test_a_recorded_confidence_is_compared_as_the_policy_compares_it():
    # 0.7 is stored in single precision, a little below 0.7: the policy threshold:0.7 drops it.
    frame = recording_frame().assign(confidence=[[0.7, 0.7, 0.6]] * len(recording_frame()))
    confidence = responses(frame).blocks.confidence
    assert threshold_lengths(confidence, 0.7).max() == 0
    assert threshold_lengths(confidence, 0.6).min() == 3


@settings(max_examples=6)
@given(st.integers(0, 99), st.sampled_from(["chat-dspark:noise=1", "math-eagle3:scale=2"]))
def test_a_sweep_counts_every_verified_token_once(seed, name):
    drawn = draw_responses(load_acceptance(name), seed=seed)
    table = sweep_thresholds(drawn, [0.0, 0.4, 0.8])
    np.testing.assert_allclose(table["verified"], table["accepted"] + table["rejected"])
    np.testing.assert_allclose(table["acceptance_length"], 1 + table["accepted"])
    assert table["acceptance_length"].between(1, 8).all()
    assert table["verify_budget"].between(1, 8).all()
    whole = replay(drawn.blocks).acceptance_length()[0]
    assert table.loc[0, "acceptance_length"] == pytest.approx(whole)
