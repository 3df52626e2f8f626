from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")

import numpy as np  # noqa: E402
from model_lively import lively_target  # noqa: E402
from model_nano import EVERY_DRAFTER, nano_drafter, prompts  # noqa: E402
from model_toy import DRAFT_TABLE, TARGET_TABLE, ToyDrafter, ToyTarget  # noqa: E402

from dspark_sim.acceptance import read_recording, write_recording  # noqa: E402
from dspark_sim.acceptance.calibration import Blocks  # noqa: E402
from dspark_sim.acceptance.ratio import ratio_with_error  # noqa: E402
from dspark_sim.acceptance.replay import replay as replay_blocks  # noqa: E402
from dspark_sim.model.generate import Decoding, generate  # noqa: E402
from dspark_sim.model.record import (  # noqa: E402
    Response,
    Trail,
    read_response,
    record,
    record_response,
    recording_metadata,
)
from dspark_sim.model.speculate import speculate  # noqa: E402

REQUESTS, LENGTH, GAMMA = 500, 60, 4


def response(number: int, answer: list[int]) -> Response:
    return Response(str(number), "", (0,), tuple(answer))


def replay(accepted: list[np.ndarray], verify_len: int) -> tuple[float, float]:
    response = np.repeat(np.arange(len(accepted)), [len(a) for a in accepted])
    unused = np.zeros((len(response), GAMMA))
    rounds = replay_blocks(Blocks(unused, np.concatenate(accepted), response), verify_len)
    return rounds.acceptance_length()


@pytest.fixture(scope="module")
def answers() -> list[list[int]]:
    return generate(ToyTarget(), [[0]] * REQUESTS, Decoding(LENGTH + GAMMA - 1, seed=1))


def true_length(verify_len: int) -> tuple[float, float]:
    """Acceptance length of real speculation, steps up to the same output position."""
    result = speculate(
        ToyTarget(), ToyDrafter(), [[0]] * REQUESTS, Decoding(LENGTH + 8, seed=2), verify_len
    )
    rounds = [r for r in result.records if r.position < LENGTH]
    return ratio_with_error(
        np.array([1.0 + r.accepted for r in rounds]), np.array([r.request for r in rounds])
    )


def naive_match(y: list[int], rng: np.random.Generator) -> np.ndarray:
    """Own drafts, accepted where they equal the response."""
    q = DRAFT_TABLE.numpy().astype(float)
    out = []
    for p in range(LENGTH):
        previous, count = ([0, *y])[p], 0
        while count < GAMMA:
            x = rng.choice(3, p=q[previous] / q[previous].sum())
            if x != y[p + count]:
                break
            previous, count = x, count + 1
        out.append(count)
    return np.array(out)


def naive_test(y: list[int], rng: np.random.Generator) -> np.ndarray:
    """Own drafts with the p / q test, without regard to the response."""
    t, q = TARGET_TABLE.numpy(), DRAFT_TABLE.numpy().astype(float)
    out = []
    for p in range(LENGTH):
        previous, count = ([0, *y])[p], 0
        while count < GAMMA:
            x = rng.choice(3, p=q[previous] / q[previous].sum())
            if rng.random() * q[previous, x] >= t[previous, x]:
                break
            previous, count = x, count + 1
        out.append(count)
    return np.array(out)


@pytest.mark.parametrize("verify_len", [2, 4])
def test_a_replayed_recording_has_the_acceptance_length_of_real_speculation(
    verify_len: int, answers: list[list[int]]
) -> None:
    target, drafter, c = ToyTarget(), ToyDrafter(), Decoding(0, seed=3)
    recorded = [
        record_response(drafter, read_response(target, response(i, y), c), c, i)[0]
        for i, y in enumerate(answers)
    ]
    truth, truth_error = true_length(verify_len)
    replayed, error = replay(recorded, verify_len)
    assert abs(replayed - truth) < 3 * np.hypot(error, truth_error)
    rng = np.random.default_rng(0)
    for naive in (naive_match, naive_test):
        biased, error = replay([naive(y, rng) for y in answers], verify_len)
        assert abs(biased - truth) > 6 * np.hypot(error, truth_error)


@pytest.mark.parametrize("name", EVERY_DRAFTER)
@pytest.mark.parametrize("verify_len", [1, 3, None])
def test_greedy_replay_is_the_real_speculation_step_by_step(
    name: str, verify_len: int | None
) -> None:
    target = lively_target()
    drafter = nano_drafter(name, target)
    if verify_len is not None and verify_len > drafter.gamma:
        pytest.skip("longer than the block")
    answer = generate(target, prompts(4), Decoding(30, temperature=0.0))
    result = speculate(target, drafter, prompts(4), Decoding(30, temperature=0.0), verify_len)
    for i, (prompt, y) in enumerate(zip(prompts(4), answer, strict=True)):
        c = Decoding(0, temperature=0.0)
        reading = read_response(target, Response(str(i), "", tuple(prompt), tuple(y)), c)
        accepted, confidence = record_response(drafter, reading, c, i)
        for r in result.records:
            if r.request == i and r.position < len(accepted):
                assert r.accepted == min(accepted[r.position], r.verify_len)
                np.testing.assert_allclose(confidence[r.position], r.confidence, atol=1e-4)


def test_one_uniform_number_decides_a_position_whatever_block_tests_it(
    answers: list[list[int]],
) -> None:
    # The Markov drafter's rate at a position is the same in every block, so the outcome is too.
    y = answers[0]
    c = Decoding(0, seed=3)
    accepted, _ = record_response(ToyDrafter(), read_response(ToyTarget(), response(0, y), c), c, 0)
    for start, count in enumerate(accepted[:-1]):
        if count:
            assert accepted[start + 1] >= count - 1
        if 0 < count < GAMMA:
            assert accepted[start + count] == 0


def test_the_first_rejected_draft_comes_from_what_the_drafter_overrates() -> None:
    n = 30_000
    trail = Trail.start(n, torch.device("cpu"))
    p_d, p_t = DRAFT_TABLE[0].expand(n, 3), TARGET_TABLE[0].expand(n, 3)
    y = torch.full((n,), 2)
    u = torch.rand(2, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drafted = trail.advance(p_d, p_t, y, (u[0], u[1]))
    rejected = drafted[trail.accepted == 0]
    assert trail.accepted.float().mean() == pytest.approx(0.02 / 0.4, abs=0.005)
    over = (DRAFT_TABLE[0] - TARGET_TABLE[0]).clamp(min=0)
    share = torch.bincount(rejected, minlength=3) / len(rejected)
    torch.testing.assert_close(share, over / over.sum(), atol=0.01, rtol=0)


def test_a_recording_is_written_and_read_back(tmp_path) -> None:
    target = lively_target()
    drafter = nano_drafter("dspark-markov", target)
    answers = generate(target, prompts(3), Decoding(20, seed=4))
    responses = [
        Response(f"r{i}", "math" if i else "chat", tuple(p), tuple(y))
        for i, (p, y) in enumerate(zip(prompts(3), answers, strict=True))
    ]
    c = Decoding(0, seed=4)
    frame = record(target, {"dspark-markov": drafter}, responses, c)["dspark-markov"]
    path = tmp_path / "nano.parquet"
    write_recording(
        path, frame, recording_metadata(target, drafter, "dspark-markov", c, command="x")
    )
    back = read_recording(path)
    assert back.max_draft_len == 4
    assert back.categories == ["chat", "math"]
    assert len(back.frame) == 3 * 17
    assert "dspark-markov against nano, T = 1" in back.origin
