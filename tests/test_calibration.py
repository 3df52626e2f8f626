from dataclasses import replace

import numpy as np
import pytest
from small_recording import GAMMA, LENGTHS, recording_frame

from dspark_sim.acceptance import RecordedAcceptance, load_acceptance
from dspark_sim.acceptance.calibration import (
    Blocks,
    calibration_table,
    compare_calibration,
    draw_blocks,
    fit_held_out,
)
from dspark_sim.acceptance.temperature import SequentialTemperatureScaling
from dspark_sim.core import UserError

CHAT = load_acceptance("chat-dspark")
OVERCONFIDENT = replace(CHAT, confidence_scale=1.8)


def test_a_calibrated_law_has_next_to_no_error():
    table = calibration_table(CHAT, SequentialTemperatureScaling((1.0,) * 7))
    assert list(table["position"]) == list(range(1, 8))
    assert (table["ece_before"] < 0.02).all()
    assert (table["bias_before"].abs() < 0.02).all()
    np.testing.assert_array_equal(table["ece_before"], table["ece_after"])


def test_temperatures_correct_an_overconfident_law_on_requests_they_were_not_fitted_on():
    table = calibration_table(OVERCONFIDENT)
    assert table["temperature"][0] == pytest.approx(1.8, rel=0.15)
    assert (table["bias_before"] > 0.04).all()
    assert (table["ece_before"] > 0.06).all()
    assert (table["ece_after"] < 0.03).all()
    assert (table["brier_after"] < table["brier_before"]).all()


def test_a_temperature_leaves_the_ranking_at_position_one_alone():
    table = calibration_table(OVERCONFIDENT)
    assert table["auc_before"][0] == pytest.approx(table["auc_after"][0], abs=1e-12)
    assert 0.75 < table["auc_before"][0] < 0.9


def test_confidence_that_is_always_the_same_ranks_nothing():
    blocks = draw_blocks(load_acceptance("geometric:3.5"), 50, 20)
    table = compare_calibration(blocks, SequentialTemperatureScaling((1.0,) * 7))
    assert table["auc_before"][0] == 0.5


def test_all_blocks_of_a_request_are_on_one_side():
    blocks = draw_blocks(CHAT, 21, 4)
    train, test = blocks.split(0.3, seed=5)
    assert not set(train.request) & set(test.request)
    assert len(set(test.request)) == 6
    assert len(train.accepted) + len(test.accepted) == 84
    again = blocks.split(0.3, seed=5)[1]
    np.testing.assert_array_equal(again.request, test.request)
    assert set(blocks.split(0.3, seed=6)[1].request) != set(test.request)


@pytest.mark.parametrize(("held_out", "requests"), [(0.0, 5), (1.0, 5), (np.nan, 5), (0.5, 1)])
def test_a_split_that_leaves_one_side_empty_is_told(held_out, requests):
    blocks = draw_blocks(CHAT, requests, 3)
    with pytest.raises(UserError, match="cannot be split off"):
        blocks.split(held_out)


def test_both_sides_get_a_request_however_small_the_share():
    blocks = draw_blocks(CHAT, 3, 1)
    assert [len(part.accepted) for part in blocks.split(0.01)] == [2, 1]
    assert [len(part.accepted) for part in blocks.split(0.99)] == [1, 2]


def test_temperatures_are_fitted_on_the_other_requests_only():
    blocks = draw_blocks(OVERCONFIDENT, 40, 16)
    scaling, test = fit_held_out(blocks, "chat", held_out=0.25, seed=2)
    train, held_out = blocks.split(0.25, seed=2)
    assert scaling == SequentialTemperatureScaling.fit(train.confidence, train.accepted, "chat")
    np.testing.assert_array_equal(test.request, held_out.request)


def test_rounds_start_at_position_1_and_after_each_bonus_token():
    accepted, request = np.array([2, 0, 0, 1, 5, 0, 0, 3, 1]), np.array([1] * 6 + [2] * 3)
    rounds = Blocks(np.arange(9.0)[:, None], accepted, request).rounds()
    assert rounds.confidence[:, 0].tolist() == [1, 2, 3, 5, 7]
    assert rounds.accepted.tolist() == [0, 0, 1, 0, 3]
    assert rounds.request.tolist() == [1, 1, 1, 1, 2]


def test_rounds_of_a_law_return_the_published_rates():
    accepted = draw_blocks(CHAT, 2000, 64).rounds().accepted
    reached = np.array([(accepted >= k).mean() for k in range(8)])
    np.testing.assert_allclose(reached[1:] / reached[:-1], CHAT.rates, atol=0.015)


def test_a_recording_gives_each_of_its_positions_once():
    frame = recording_frame()
    blocks = draw_blocks(RecordedAcceptance("small", frame, GAMMA))
    assert len(blocks.accepted) == sum(LENGTHS.values())
    ordered = frame.sort_values(["request_id", "position"])
    np.testing.assert_array_equal(blocks.accepted, ordered["accepted"])
    np.testing.assert_allclose(blocks.confidence, np.stack(ordered["confidence"]), rtol=1e-6)
    np.testing.assert_array_equal(np.bincount(blocks.request), list(LENGTHS.values()))


def test_a_recording_can_be_calibrated():
    table = calibration_table(RecordedAcceptance("small", recording_frame(), GAMMA))
    assert len(table) == GAMMA
    assert table["ece_after"].between(0.0, 1.0).all()


def test_shorter_blocks_and_mixtures_can_be_drawn():
    mixture = load_acceptance("mix:math=math-dspark,default=chat-dspark")
    blocks = draw_blocks(mixture, 200, 16, draft_len=3, categories=["math"] * 100 + [""] * 100)
    assert blocks.confidence.shape == (3200, 3)
    math = blocks.request < 100
    assert blocks.accepted[math].mean() > blocks.accepted[~math].mean() + 0.3


def test_a_mixture_without_categories_gives_its_parts_requests_in_turn():
    mixture = load_acceptance("mix:math=math-dspark,chat=chat-dspark")
    blocks, named = (draw_blocks(mixture, 6, 8, categories=c) for c in (None, ["math", "chat"] * 3))
    np.testing.assert_array_equal(blocks.confidence, named.confidence)
    default = load_acceptance("mix:math=math-dspark,default=chat-dspark")
    blocks, named = (draw_blocks(default, 6, 8, categories=c) for c in (None, ["math", ""] * 3))
    np.testing.assert_array_equal(blocks.confidence, named.confidence)


def test_the_draw_depends_on_the_seed_alone():
    one, two, other = (draw_blocks(CHAT, 5, 8, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.confidence, two.confidence)
    assert (one.confidence != other.confidence).any()


@pytest.mark.parametrize(("requests", "positions"), [(0, 4), (4, 0)])
def test_no_blocks_are_told(requests, positions):
    with pytest.raises(UserError, match="both must be 1 or more"):
        draw_blocks(CHAT, requests, positions)


def test_more_draft_tokens_than_the_source_knows_are_told():
    with pytest.raises(UserError, match="8 draft tokens are more than"):
        draw_blocks(CHAT, draft_len=8)


def test_certain_confidence_is_calibrated_without_a_warning():
    confidence = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    blocks = Blocks(confidence, np.array([0, 2, 1, 2]), np.arange(4))
    scaling, _ = fit_held_out(blocks)
    table = compare_calibration(blocks, scaling)
    assert (table["ece_after"] == 0.0).all()
    assert (table["auc_after"] == 1.0).all()
