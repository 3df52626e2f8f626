import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_steps import survivals

from dspark_sim.policies.search import (
    NUM_BUCKETS,
    allocate_budget,
    new_scratch,
    open_candidates,
    rank_survivals,
    sort_places,
    spread_candidates,
    take_candidate,
)


@st.composite
def candidates(draw):
    num, gamma = draw(st.integers(0, 8)), draw(st.integers(1, 5))
    draft_len = draw(st.lists(st.integers(0, gamma), min_size=num, max_size=num))
    return draw(survivals(num, gamma)), np.array(draft_len, dtype=np.int64)


def scratch(survival):
    room = new_scratch(*survival.shape)
    for array in room:
        array[:] = -7
    return room


def in_order(survival, draft_len):
    places = [
        (-survival[r, j], j, r) for r in range(len(draft_len)) for j in range(int(draft_len[r]))
    ]
    return sorted(places)


@given(candidates())
def test_candidates_come_by_survival_then_position_then_request(given_candidates):
    survival, draft_len = given_candidates
    depth, heap = np.zeros((2, len(draft_len)), dtype=np.int64)
    size = open_candidates(survival, draft_len, len(draft_len), depth, heap)
    taken = []
    while size:
        best = int(heap[0])
        taken.append((-survival[best, depth[best]], int(depth[best]), best))
        size = take_candidate(survival, draft_len, depth, heap, size)
    assert taken == in_order(survival, draft_len)
    assert depth.tolist() == draft_len.tolist()


@given(candidates(), st.integers(0, 4))
def test_ranked_survivals_are_those_in_order(given_candidates, least):
    survival, draft_len = given_candidates
    room = scratch(survival)
    total = rank_survivals(survival, draft_len, len(draft_len), least, room)
    expected = [-worth for worth, j, _ in in_order(survival, draft_len) if j >= least]
    assert room.order.view(float)[:total].tolist() == expected


@given(candidates(), st.integers(0, 50))
def test_a_budget_goes_to_the_best_and_no_further_than_the_drafts(given_candidates, budget):
    survival, draft_len = given_candidates
    verify_len = np.full(len(draft_len), -7)
    allocate_budget(survival, draft_len, len(draft_len), 0, budget, verify_len, scratch(survival))
    best = [r for _, _, r in in_order(survival, draft_len)[:budget]]
    assert verify_len.tolist() == [best.count(r) for r in range(len(draft_len))]


def test_only_the_first_requests_count():
    survival, draft_len = np.array([[0.1], [0.9]]), np.array([1, 1])
    verify_len = np.full(2, -7)
    allocate_budget(survival, draft_len, 1, 0, 5, verify_len, scratch(survival))
    assert verify_len.tolist() == [1, -7]


@given(candidates(), st.integers(0, 4), st.integers(0, 50))
def test_the_least_of_every_draft_comes_before_the_best(given_candidates, least, budget):
    survival, draft_len = given_candidates
    verify_len = np.full(len(draft_len), -7)
    allocate_budget(
        survival, draft_len, len(draft_len), least, budget, verify_len, scratch(survival)
    )
    floor = np.minimum(draft_len, least)
    beyond = [r for _, j, r in in_order(survival, draft_len) if j >= least]
    best = beyond[: max(budget - int(floor.sum()), 0)]
    assert verify_len.tolist() == [int(floor[r]) + best.count(r) for r in range(len(draft_len))]


EDGES = np.array([1.0, np.nextafter(1.0, 0.0), 2.0**-12, np.nextafter(2.0**-12, 0.0), 1e-12, 0.0])
CONFIDENCES = {
    "any": lambda luck, shape: luck.random(shape),
    "ties": lambda luck, shape: luck.integers(0, 5, shape) / 4,
    "nearly one": lambda luck, shape: 1.0 - luck.random(shape) * 1e-9,
    "tiny": lambda luck, shape: luck.random(shape) * 1e-3,
    "edges": lambda luck, shape: luck.choice(EDGES, shape),
}


@pytest.mark.parametrize("kind", CONFIDENCES)
@pytest.mark.parametrize("shape", [(1, 1), (18, 7), (19, 7), (73, 7), (74, 7), (256, 7)])
def test_any_number_of_candidates_is_in_order_at_once_and_bucket_by_bucket(shape, kind):
    luck = np.random.default_rng(shape[0])
    survival = np.cumprod(CONFIDENCES[kind](luck, shape), axis=1)
    draft_len = luck.integers(0, shape[1] + 1, shape[0])
    expected = [r * shape[1] + j for _, j, r in in_order(survival, draft_len)]
    room = scratch(survival)
    total = rank_survivals(survival, draft_len, shape[0], 0, room)
    assert room.order.view(float)[:total].tolist() == survival.reshape(-1)[expected].tolist()
    total = spread_candidates(survival, draft_len, shape[0], room)
    order, buckets = room.order, room.buckets[:NUM_BUCKETS]
    first = 0
    for end in np.unique(buckets[(buckets > 0) & (buckets <= total)]):
        sort_places(survival.reshape(-1), survival.shape[1], order, first, end)
        assert order[:end].tolist() == expected[:end]
        first = end
    assert first == total == len(expected)


@pytest.mark.parametrize("kind", CONFIDENCES)
@pytest.mark.parametrize("least", [0, 2])
def test_a_budget_of_a_large_batch_goes_to_the_best(kind, least):
    luck = np.random.default_rng(least)
    survival = np.cumprod(CONFIDENCES[kind](luck, (80, 7)), axis=1)
    draft_len = luck.integers(0, 8, 80)
    floor = np.minimum(draft_len, least)
    beyond = [r for _, j, r in in_order(survival, draft_len) if j >= least]
    for budget in (0, 1, 150, 200, 400, 600):
        verify_len = np.full(80, -7)
        allocate_budget(survival, draft_len, 80, least, budget, verify_len, scratch(survival))
        best = beyond[: max(budget - int(floor.sum()), 0)]
        assert verify_len.tolist() == [int(floor[r]) + best.count(r) for r in range(80)]
