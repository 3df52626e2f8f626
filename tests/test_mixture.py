import numpy as np
import pytest
from small_recording import LENGTHS, recording_frame

from dspark_sim.acceptance import MixedAcceptance, RecordedAcceptance, load_acceptance
from dspark_sim.core import UserError

MATH, CHAT = load_acceptance("math-dspark"), load_acceptance("chat-eagle3")
KINDS = ["math", "chat", "other", "", "chat", "math"] * 50
PLACES = np.arange(len(KINDS)), np.arange(len(KINDS)) % 17


def recorded(gamma=4, kinds=None):
    kinds = kinds or dict.fromkeys(LENGTHS, "")
    return RecordedAcceptance("tape", recording_frame(kinds, gamma), gamma)


def check_same(mixed, part, chosen, draft_len=None, names=None):
    """A request of a mixture sees what its part alone would show it."""
    confidence, accepted = mixed.block(*PLACES, draft_len, seed=3, categories=KINDS)
    alone = part.block(*PLACES, draft_len, seed=3, categories=names)
    mine = np.isin(KINDS, chosen)
    assert confidence[mine].tolist() == alone[0][mine].tolist()
    assert accepted[mine].tolist() == alone[1][mine].tolist()


def test_each_category_has_its_own_law_and_the_default_answers_for_the_rest():
    mixed = MixedAcceptance("m", {"math": MATH}, default=CHAT)
    check_same(mixed, MATH, ["math"])
    check_same(mixed, CHAT, ["chat", "other", ""])


def test_laws_and_recordings_mix():
    tape = recorded()
    mixed = MixedAcceptance("m", {"chat": tape, "math": MATH}, default=CHAT)
    check_same(mixed, tape, ["chat"], 4)
    check_same(mixed, MATH, ["math"], 4)
    check_same(mixed, CHAT, ["other", ""], 4)


def test_two_recordings_keep_their_own_responses():
    tape, long_tape = recorded(), recorded(gamma=5)
    mixed = MixedAcceptance("m", {"chat": tape, "math": long_tape}, default=CHAT)
    check_same(mixed, tape, ["chat"], 4)
    check_same(mixed, long_tape, ["math"], 4)


def test_a_recording_by_category_can_be_the_default():
    tape = recorded(kinds={"a": "chat", "b": "other", "c": "other", "d": "chat"})
    mixed = MixedAcceptance("m", {"math": MATH}, default=tape)
    names = ["" if kind == "math" else kind for kind in KINDS]
    check_same(mixed, tape, ["chat", "other", ""], 4, names)


def test_a_mixture_knows_no_longer_drafts_than_its_shortest_part():
    golden = load_acceptance("golden-dsv4-pro-dspark")
    assert MixedAcceptance("m", {"a": golden}, default=CHAT).max_draft_len == 7
    assert MixedAcceptance("m", {"a": golden, "b": recorded()}).max_draft_len == 4
    with pytest.raises(UserError, match="5 draft tokens are more than acceptance 'm' knows"):
        MixedAcceptance("m", {"a": golden, "b": recorded()}).tables(["a"], 5)


def test_a_category_without_a_law_and_without_a_default_is_an_error_with_the_nearest():
    mixed = MixedAcceptance("m", {"math": MATH, "chat": CHAT})
    with pytest.raises(UserError, match=r"unknown category 'chatt' in mixture 'm'.*'chat'"):
        mixed.assign(["math", "chatt"])


def test_a_request_without_category_needs_a_default():
    mixed = MixedAcceptance("m", {"math": MATH})
    with pytest.raises(UserError, match="unknown category ''"):
        mixed.assign(["math", ""])
    assert MixedAcceptance("m", {"math": MATH}, default=CHAT).assign(["", "math"]).tolist() == [
        1,
        0,
    ]


def test_a_mixture_of_nothing_is_an_error():
    with pytest.raises(UserError, match="a mixture needs at least one category=NAME"):
        MixedAcceptance("m", {}, default=CHAT)
