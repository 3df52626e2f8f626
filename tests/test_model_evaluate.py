from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")

import numpy as np  # noqa: E402
from model_nano import prompts  # noqa: E402
from model_toy import DRAFT_TABLE, TARGET_TABLE, ToyDrafter, ToyTarget  # noqa: E402

from dspark_sim.model.evaluate import acceptance, evaluate, ratio_with_error  # noqa: E402
from dspark_sim.model.generate import Decoding  # noqa: E402
from dspark_sim.model.speculate import StepRecord  # noqa: E402


def record(request: int, position: int, accepted: int) -> StepRecord:
    return StepRecord(0, request, position, (), (), 3, accepted)


def test_rounds_become_accepted_length_and_conditional_acceptance() -> None:
    rows = [record(0, 1, 3), record(0, 5, 1), record(1, 1, 0), record(1, 2, 2), record(1, 9, 0)]
    found = acceptance(rows, 3, "math", last_position=8)
    assert found.acceptance_length == pytest.approx(1 + 6 / 4)
    assert found.conditional == pytest.approx((3 / 4, 2 / 3, 1 / 2))
    assert (found.domain, found.rounds) == ("math", 4)


def test_the_error_counts_requests_and_not_rounds() -> None:
    values = np.repeat([1.0, 3.0], 50)
    _, error = ratio_with_error(values, np.repeat([0, 1], 50))
    assert error == pytest.approx(1.0)


def test_the_first_positions_rate_of_a_toy_pair_is_the_overlap_of_its_tables() -> None:
    asked = [("a", [0]), ("b", [1])] * 300
    rows = evaluate(ToyTarget(), ToyDrafter(), asked, Decoding(40, seed=5))
    assert [row.domain for row in rows] == ["a", "b"]
    overlap = torch.minimum(TARGET_TABLE, DRAFT_TABLE).sum(1)
    for row in rows:
        assert overlap.min() < row.conditional[0] < overlap.max()
        assert row.acceptance_length == pytest.approx(
            1 + np.cumprod(row.conditional).sum(), rel=1e-9
        )


def test_prompts_of_unequal_length_are_evaluated_together() -> None:
    asked = [("x", [t % 3 for t in p]) for p in prompts(5)]
    (row,) = evaluate(ToyTarget(), ToyDrafter(), asked, Decoding(10))
    assert row.rounds >= 5
