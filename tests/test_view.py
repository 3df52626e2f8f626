import dataclasses

import numpy as np
import pytest
from hypothesis import given
from policy_steps import step_view, steps

from dspark_sim.policies import BelievedCost, DraftView, SchedulerView

DRAFT_FIELDS = {
    "time_s",
    "request",
    "context_tokens",
    "output_tokens",
    "decode_steps",
    "last_verify_len",
    "last_accepted",
    "history",
    "prefill_tokens",
    "num_sampling",
    "num_waiting",
    "cost",
    "max_draft_len",
}


def fields(view):
    return {field.name for field in dataclasses.fields(view)}


def test_no_view_has_a_field_for_outcomes_or_output_lengths():
    # What a real scheduler knows, listed: a new field must be justified here.
    assert fields(DraftView) == DRAFT_FIELDS
    assert fields(SchedulerView) == DRAFT_FIELDS | {"draft_len", "confidence"}
    assert fields(BelievedCost) == {"verify_ns", "draft_ns", "fixed_ns"}


@pytest.mark.parametrize("view", [DraftView, SchedulerView, BelievedCost])
def test_a_view_has_no_attribute_beside_its_fields_that_could_hold_an_outcome(view):
    methods = {name for name in dir(view) if not name.startswith("_")} - fields(view)
    assert methods <= {
        "num_requests",
        "survival",
        "lagged_survival",
        "step_time_s",
        "steps_per_second",
    }


def test_a_view_is_frozen():
    view = step_view([[0.5]], [0, 1, 2])
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.time_s = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.cost.fixed_ns = 1


@given(steps())
def test_survival_is_the_product_of_the_confidences_so_far(view):
    for r in range(view.num_requests):
        for j in range(view.max_draft_len):
            assert view.survival[r, j] == pytest.approx(np.prod(view.confidence[r, : j + 1]))


def test_lagged_survival_is_live_or_as_old_as_asked():
    history = np.arange(12.0).reshape(2, 3, 2) / 12
    view = step_view([[0.5, 0.5], [0.25, 1.0]], [0] * 7, history=history)
    assert view.lagged_survival(0).tolist() == [[0.5, 0.25], [0.25, 0.25]]
    for lag in (1, 2, 3):
        assert view.lagged_survival(lag).tolist() == history[:, lag - 1].tolist()


def test_a_step_costs_its_fixed_part_its_draft_and_its_verify_pass():
    draft_ns = np.array([[0, 0, 0], [0, 20, 30]])
    cost = BelievedCost(np.array([0, 1_000, 2_000, -1]), draft_ns, 500)
    assert cost.step_time_s(1) == pytest.approx(1.5e-6)
    assert cost.step_time_s(2, 1, 2) == pytest.approx(2.53e-6)
    assert cost.steps_per_second(2, 1, 2) == pytest.approx(1 / 2.53e-6)


@pytest.mark.parametrize("tokens", [3, 4, 1_000, -1])
def test_a_batch_outside_the_table_takes_for_ever(tokens):
    cost = BelievedCost(np.array([0, 1_000, 2_000, -1]), np.zeros((2, 3), dtype=np.int64), 500)
    assert cost.step_time_s(tokens) == float("inf")
    assert cost.steps_per_second(tokens) == 0.0
