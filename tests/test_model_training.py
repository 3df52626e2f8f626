from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")

import numpy as np  # noqa: E402
from model_nano import nano_drafter, nano_target  # noqa: E402

from dspark_sim.core import UserError  # noqa: E402
from dspark_sim.model.generate import Decoding, generate  # noqa: E402
from dspark_sim.model.hidden import read_hidden, write_hidden  # noqa: E402
from dspark_sim.model.losses import acceptance_rate, block_losses  # noqa: E402
from dspark_sim.model.training import (  # noqa: E402
    TrainConfig,
    choose_anchors,
    train_drafter,
    training_rows,
)

TARGET = nano_target(sharpness=5.0)
TRAINED = ("dspark-markov", "dspark-rnn", "dflash", "eagle3", "mtp1")


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory):
    rows = [[i, *r] for i, r in enumerate(generate(TARGET, [[i] for i in range(24)], Decoding(40)))]
    rows[3] = rows[3][:17]
    return write_hidden(tmp_path_factory.mktemp("hidden") / "cache", TARGET, rows, [1] * 24)


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_reach_the_drafter_and_nothing_of_the_target(name: str, hidden) -> None:
    drafter = nano_drafter(name, TARGET)
    TARGET.zero_grad()
    losses = block_losses(drafter, training_rows(hidden, TrainConfig(rows=3, anchors=4), 0))
    losses.total().backward()
    silent = [n for n, p in drafter.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []
    assert all(p.grad is None for p in TARGET.parameters())
    assert drafter.embedding.grad is None
    assert not drafter.embedding.requires_grad


def test_the_confidence_target_carries_no_gradient_into_the_draft(hidden) -> None:
    drafter = nano_drafter("dspark-markov", TARGET)
    losses = block_losses(drafter, training_rows(hidden, TrainConfig(rows=3, anchors=4), 0))
    losses.total(ce=0.0, tv=0.0, confidence=1.0).backward()
    assert drafter.head.w2.weight.grad is None or not drafter.head.w2.weight.grad.any()
    assert drafter.confidence_head.weight.weight.grad.any()


def test_the_acceptance_rate_is_one_minus_half_the_l1_distance() -> None:
    p, q = torch.rand(2, 50, 9).softmax(-1)
    brute = [
        1 - 0.5 * sum(abs(a - b) for a, b in zip(x, y, strict=True))
        for x, y in zip(p.tolist(), q.tolist(), strict=True)
    ]
    torch.testing.assert_close(acceptance_rate(p, q), torch.tensor(brute))


@pytest.mark.parametrize("ids", [None, tuple(range(40, 10, -1))])
def test_the_confidence_target_of_training_equals_brute_force(ids, hidden) -> None:
    drafter = nano_drafter("dspark-markov", TARGET, draft_ids=ids)
    rows = training_rows(hidden, TrainConfig(rows=1, anchors=1), 5)
    losses = block_losses(drafter, rows)
    tokens, anchor = rows.tokens, int(rows.positions)
    with torch.no_grad():
        context = drafter.new_context(rows.features, torch.roll(tokens, -1, 1), rows.lengths)
        block = drafter.begin(context, tokens[:, anchor, None], rows.positions)
        logits = TARGET.logits(TARGET(tokens).hidden)[0]
        for k in range(1, drafter.gamma + 1):
            if anchor + k >= int(rows.lengths):
                break
            prediction = drafter.step(block, tokens[:, anchor + k - 1, None])
            p_d = drafter.full(prediction.logits[0, 0].softmax(-1)).tolist()
            p_t = logits[anchor + k - 1].softmax(-1).tolist()
            brute = 1 - 0.5 * sum(abs(a - b) for a, b in zip(p_d, p_t, strict=True))
            assert float(losses.acceptance[k - 1]) == pytest.approx(brute, abs=2e-3)
            l1 = float(losses.variation[k - 1].detach())
            assert l1 == pytest.approx(2 * (1 - brute), abs=4e-3)


def test_the_loss_weighs_positions_exponentially(hidden) -> None:
    drafter = nano_drafter("dspark-markov", TARGET)
    losses = block_losses(drafter, training_rows(hidden, TrainConfig(rows=3, anchors=4), 0))
    w = np.exp(-np.arange(4) / 4)
    parts = [
        x.detach().numpy() for x in (losses.cross_entropy, losses.variation, losses.confidence)
    ]
    per_block = (0.1 * parts[0] + 0.9 * parts[1] + parts[2]) / losses.count.numpy()
    assert float(losses.total().detach()) == pytest.approx(
        (w * per_block).sum() / w.sum(), rel=1e-5
    )


def test_training_starts_with_cross_entropy_and_ends_at_the_papers_weights() -> None:
    c = TrainConfig(steps=100, blend=0.2)
    assert c.weights(0) == (1.0, 0.0, 1.0)
    assert c.weights(50) == pytest.approx((0.1, 0.9, 1.0))


@pytest.mark.parametrize("name", ["dspark-markov", "eagle3"])
def test_training_raises_held_out_acceptance_and_resumes_where_it_stopped(
    name: str, hidden, tmp_path
) -> None:
    c = TrainConfig(steps=40, rows=4, anchors=8, muon_lr=3e-3, warmup=5, save_every=20)
    curve: list[dict] = []
    whole = train_drafter(
        nano_drafter(name, TARGET), hidden, hidden, c, tmp_path / "a.pt", curve.append
    )
    assert [row["step"] for row in curve] == [20, 40]
    assert curve[1]["acceptance"][0] > curve[0]["acceptance"][0]

    class StopError(Exception):
        pass

    def stop(row: dict) -> None:
        raise StopError

    with pytest.raises(StopError):
        train_drafter(nano_drafter(name, TARGET), hidden, hidden, c, tmp_path / "b.pt", stop)
    resumed = train_drafter(
        nano_drafter(name, TARGET, seed=9), hidden, hidden, c, tmp_path / "b.pt"
    )
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_cached_states_are_what_the_target_says(hidden) -> None:
    tokens, features, log_norm, lengths = hidden.rows(np.array([3, 0]), "cpu")
    assert lengths.tolist() == [17, 41]
    output = TARGET(tokens)
    for row, length in enumerate(lengths.tolist()):
        final = features[row, :length, -32:]
        torch.testing.assert_close(final, output.hidden[row, :length], atol=5e-3, rtol=2e-3)
        norm = TARGET.logits(output.hidden[row, :length]).logsumexp(-1)
        torch.testing.assert_close(log_norm[row, :length], norm.detach(), atol=1e-4, rtol=1e-4)


def test_anchors_stand_between_the_start_and_the_last_token_but_one() -> None:
    rng = np.random.default_rng(0)
    starts, lengths = np.array([1, 5]), np.array([9, 7])
    chosen = choose_anchors(starts, lengths, 400, rng)
    assert [sorted(set(row.tolist())) for row in chosen] == [[1, 2, 3, 4, 5, 6, 7], [5]]
    with pytest.raises(UserError, match="too short"):
        choose_anchors(np.array([6]), np.array([7]), 4, rng)


def test_a_folder_without_hidden_states_is_named(tmp_path) -> None:
    with pytest.raises(UserError, match="no cached hidden states"):
        read_hidden(tmp_path)


def test_bf16_gives_the_same_losses_to_its_precision(hidden) -> None:
    drafter = nano_drafter("dspark-markov", TARGET)
    rows = training_rows(hidden, TrainConfig(rows=3, anchors=4), 0)
    exact = block_losses(drafter, rows)
    with torch.autocast("cpu", torch.bfloat16):
        rough = block_losses(drafter, rows)
    torch.testing.assert_close(rough.total(), exact.total(), rtol=0.03, atol=0.0)
    torch.testing.assert_close(rough.acceptance, exact.acceptance, rtol=0.05, atol=0.05)
