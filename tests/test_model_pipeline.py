from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")
pytest.importorskip("tokenizers", reason="the extra `model` (tokenizers) is not installed")

from dspark_sim.model import pipeline  # noqa: E402
from dspark_sim.model.corpus import DOMAINS, Document, chat_prompt  # noqa: E402
from dspark_sim.model.drafters import all_features  # noqa: E402
from dspark_sim.model.generate import Decoding, generate  # noqa: E402
from dspark_sim.model.speculate import speculate  # noqa: E402
from dspark_sim.model.training import TrainConfig  # noqa: E402
from dspark_sim.model.weights import load_drafter, load_target, weights_about  # noqa: E402

TEXTS = [
    Document(domain, (f"what is {i} and {i}?", f"{i}+{i}={2 * i}, and so on and on. " * 6))
    for domain in DOMAINS
    for i in range(40)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    """A very short run of the nano recipe."""
    recipe = replace(
        pipeline.RECIPES["nano"],
        pretraining=replace(
            pipeline.RECIPES["nano"].pretraining, steps=60, batch=6, width=48, save_every=30
        ),
        drafting=TrainConfig(steps=30, rows=4, anchors=8, save_every=15),
        answers_per_domain=6,
        answer_tokens=30,
    )
    folder = tmp_path_factory.mktemp("made")
    rows: list[dict] = []
    shop = pipeline.Workshop(recipe, folder / "work", folder / "weights", progress=rows.append)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "load_documents", lambda corpora: TEXTS)
        shop.run(("dspark-markov", "eagle3"))
        shop.run(("dspark-markov", "eagle3"))
    return shop, rows


def test_a_recipe_leaves_a_target_and_drafters_that_speculate_losslessly(made) -> None:
    shop, _ = made
    target, tokenizer = load_target("nano", shop.weights)
    prompt = tokenizer.encode(chat_prompt(TEXTS[0].turns[:-1])).ids
    c = Decoding(20, temperature=0.0)
    plain = generate(target, [prompt], c)
    for name in ("dspark-markov", "eagle3"):
        drafter = load_drafter(name, target, shop.weights)
        assert speculate(target, drafter, [prompt], c).responses == plain


def test_stages_that_are_done_are_not_done_again(made) -> None:
    _, rows = made
    stages = [row["stage"] for row in rows if "loss" in row]
    assert stages == ["target"] * 2 + ["dspark-markov"] * 2 + ["eagle3"] * 2


def test_weights_carry_the_held_out_results_of_their_training(made) -> None:
    shop, _ = made
    about = weights_about(shop.folder / "target.safetensors")
    assert set(DOMAINS) <= set(about)
    about = weights_about(shop.folder / "eagle3.safetensors")
    assert len(about["acceptance"]) == 7


def test_drafters_are_trained_on_the_shipped_target(made) -> None:
    shop, _ = made
    hidden = shop.hidden("train")
    tokens, features, _, lengths = hidden.rows(torch.arange(2).numpy(), "cpu")
    expected = all_features(shop.target()(tokens))
    n = int(lengths[0])
    torch.testing.assert_close(features[0, :n], expected[0, :n], atol=5e-3, rtol=5e-3)
