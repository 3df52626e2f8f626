from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")

from model_nano import EVERY_DRAFTER, nano_drafter, nano_target  # noqa: E402

from dspark_sim.core import UserError  # noqa: E402
from dspark_sim.model.drafters import all_features, drafter_config  # noqa: E402
from dspark_sim.model.drafters.heads import ConfidenceHead, MarkovHead, RNNHead  # noqa: E402

TARGET = nano_target()
TOKENS = torch.randint(0, 64, (2, 20), generator=torch.Generator().manual_seed(4))


def block_logits(drafter, anchors, known=20, tokens=TOKENS):
    """Logits (R, A, γ, V) of blocks at `anchors` (R, A), teacher-forced, from `known` positions."""
    with torch.no_grad():
        features = all_features(TARGET(tokens[:, :known]))
        following = torch.roll(tokens, -1, 1)[:, :known]
        context = drafter.new_context(features, following, torch.full((2,), known))
        previous, out = tokens.gather(1, anchors), []
        block = drafter.begin(context, previous, anchors)
        for k in range(drafter.gamma):
            out.append(drafter.step(block, previous).logits)
            previous = tokens.gather(1, anchors + k + 1)
    return torch.stack(out, 2)


@pytest.mark.parametrize("name", EVERY_DRAFTER)
def test_blocks_packed_on_one_context_equal_blocks_drafted_alone(name: str) -> None:
    drafter = nano_drafter(name, TARGET)
    anchors = torch.tensor([[3, 9, 5, 15], [2, 2, 14, 8]])
    packed = block_logits(drafter, anchors)
    for column in range(4):
        alone = block_logits(drafter, anchors[:, column : column + 1])
        torch.testing.assert_close(packed[:, column], alone[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", EVERY_DRAFTER)
def test_a_block_sees_nothing_of_the_target_from_its_anchor_on(name: str) -> None:
    drafter = nano_drafter(name, TARGET)
    anchors = torch.tensor([[9], [9]])
    full, cut = block_logits(drafter, anchors), block_logits(drafter, anchors, known=9)
    torch.testing.assert_close(full, cut, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", EVERY_DRAFTER)
def test_a_context_that_grows_equals_one_built_at_once(name: str) -> None:
    drafter = nano_drafter(name, TARGET)
    features, following = all_features(TARGET(TOKENS)), torch.roll(TOKENS, -1, 1)
    counts = torch.tensor([12, 9])
    whole = drafter.new_context(features[:, :12], following[:, :12], counts)
    grown = drafter.new_context(features[:, :5], following[:, :5], torch.tensor([5, 5]))
    rows = [torch.arange(5, 12), torch.arange(5, 12)]
    late, then = features[:, rows[0]], following[:, rows[0]]
    drafter.extend(grown, late, then, torch.tensor([7, 4]))
    assert grown.lengths.tolist() == counts.tolist()
    for a, b in zip(whole.arrays, grown.arrays, strict=True):
        for r in range(2):
            torch.testing.assert_close(a[r, : counts[r]], b[r, : counts[r]])


@pytest.mark.parametrize("name", ["dspark-markov", "dspark-rnn", "eagle3"])
def test_sequential_drafters_depend_on_the_previous_token_and_dflash_does_not(name: str) -> None:
    other = TOKENS.clone()
    other[:, 10] = (other[:, 10] + 1) % 64
    anchors = torch.tensor([[9], [9]])
    for drafter, depends in (
        (nano_drafter(name, TARGET), True),
        (nano_drafter("dflash", TARGET), False),
    ):
        a = block_logits(drafter, anchors, known=9)
        b = block_logits(drafter, anchors, known=9, tokens=other)
        torch.testing.assert_close(a[:, :, 0], b[:, :, 0])
        assert torch.allclose(a[:, :, 1], b[:, :, 1]) is not depends


def test_the_markov_head_is_a_product_of_two_tables() -> None:
    head = MarkovHead(10, 7, 3)
    torch.nn.init.normal_(head.w2.weight)
    tokens = torch.tensor([[1, 9]])
    _, bias = head(None, head.previous(tokens), torch.zeros(1, 2, 5))
    torch.testing.assert_close(bias, head.w1.weight[tokens] @ head.w2.weight.T)


def test_an_rnn_head_without_recurrence_has_its_closed_form() -> None:
    head = RNNHead(10, 7, 3, 5)
    torch.nn.init.normal_(head.w2.weight)
    with torch.no_grad():
        head.gates.weight[:, :3] = 0  # nothing of s_{k−1} enters z
        head.gates.weight[:3] = 0  # W_g z = 0: half the old state, half the candidate
    state, hidden = None, torch.randn(4, 5)
    _, w_c, w_o = head.gates.weight.chunk(3)
    expected_state = torch.zeros(4, 3)
    for k in range(3):
        embedded = head.previous(torch.tensor([k, 1, 2, 3]))
        state, bias = head(state, embedded, hidden)
        z = torch.cat([embedded, hidden], -1)
        expected_state = 0.5 * expected_state + 0.5 * (z @ w_c[:, 3:].T).tanh()
        torch.testing.assert_close(state, expected_state)
        torch.testing.assert_close(bias, (z @ w_o[:, 3:].T).tanh() @ head.w2.weight.T)


def test_the_confidence_is_a_sigmoid_of_hidden_state_and_previous_token() -> None:
    head = ConfidenceHead(4, 2)
    torch.nn.init.normal_(head.weight.weight)
    hidden, embedded = torch.randn(3, 4), torch.randn(3, 2)
    expected = torch.cat([hidden, embedded], 1) @ head.weight.weight[0] + head.weight.bias
    torch.testing.assert_close(head(hidden, embedded), expected)


def test_a_drafter_without_a_head_is_as_confident_as_its_best_token() -> None:
    drafter = nano_drafter("dflash", TARGET)
    with torch.no_grad():
        features = all_features(TARGET(TOKENS))
        context = drafter.new_context(features, TOKENS, torch.tensor([20, 20]))
        anchors = torch.tensor([[4], [5]])
        prediction = drafter.step(
            drafter.begin(context, TOKENS.gather(1, anchors), anchors), anchors
        )
    best = prediction.logits.softmax(-1).max(-1).values
    torch.testing.assert_close(drafter.confidence(prediction), best)


def test_prompt_lookup_copies_what_followed_the_last_match() -> None:
    drafter = nano_drafter("ngram", TARGET)
    tokens = torch.tensor([[9, 5, 6, 7, 8, 5, 6, 1, 5, 6]])
    context = drafter.new_context(torch.zeros(1, 9, 1), tokens[:, 1:], torch.tensor([9]))
    anchors = torch.tensor([[9]])
    block = drafter.begin(context, tokens.gather(1, anchors), anchors)
    proposed = [drafter.step(block, anchors).logits.argmax().item() for _ in range(4)]
    assert proposed == [1, 5, 6, 6]  # 5 6 was last followed by 1 5 6; past the end: the anchor


@pytest.mark.parametrize("name", ["dspark-markov", "dflash", "eagle3"])
def test_a_drafter_that_starts_from_the_target_copies_its_layers(name: str) -> None:
    drafter = nano_drafter(name, TARGET)
    drafter.start_from(TARGET)
    layer = drafter.layer if name == "eagle3" else drafter.layers[-1]
    assert torch.equal(layer.mlp.down.weight, TARGET.layers[-1].mlp.down.weight)
    assert torch.isfinite(block_logits(drafter, torch.tensor([[4], [5]]))).all()


def test_the_embedding_is_shared_and_not_a_parameter() -> None:
    drafter = nano_drafter("dspark-markov", TARGET)
    assert drafter.embedding.data_ptr() == TARGET.embedding.weight.data_ptr()
    assert not any("embedding" in name or "head_weight" in name for name in drafter.state_dict())


def test_an_unknown_drafter_is_told_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown drafter 'eagle': did you mean 'eagle3'"):
        drafter_config("eagle")
