import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from policy_steps import survivals

from dspark_sim.policies.search import (
    NUM_BUCKETS,
    allocate_budget,
    open_candidates,
    rank_candidates,
    take_candidate,
)


@st.composite
def candidates(draw):
    num, gamma = draw(st.integers(0, 8)), draw(st.integers(1, 5))
    draft_len = draw(st.lists(st.integers(0, gamma), min_size=num, max_size=num))
    return draw(survivals(num, gamma)), np.array(draft_len, dtype=np.int64)


def scratch(survival):
    return np.full(survival.size, -7), np.full(NUM_BUCKETS, -7)


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


@given(candidates())
def test_sorting_by_buckets_gives_the_order_of_the_heap(given_candidates):
    survival, draft_len = given_candidates
    order, buckets = scratch(survival)
    total = rank_candidates(survival, draft_len, len(draft_len), order, buckets)
    places = [divmod(int(candidate), survival.shape[1]) for candidate in order[:total]]
    assert [(-survival[r, j], j, r) for r, j in places] == in_order(survival, draft_len)


@given(candidates(), st.integers(0, 50))
def test_a_budget_goes_to_the_best_and_no_further_than_the_drafts(given_candidates, budget):
    survival, draft_len = given_candidates
    verify_len = np.full(len(draft_len), -7)
    allocate_budget(survival, draft_len, len(draft_len), 0, budget, verify_len, *scratch(survival))
    best = [r for _, _, r in in_order(survival, draft_len)[:budget]]
    assert verify_len.tolist() == [best.count(r) for r in range(len(draft_len))]


def test_only_the_first_requests_count():
    survival, draft_len = np.array([[0.1], [0.9]]), np.array([1, 1])
    verify_len = np.full(2, -7)
    allocate_budget(survival, draft_len, 1, 0, 5, verify_len, *scratch(survival))
    assert verify_len.tolist() == [1, -7]


@given(candidates(), st.integers(0, 4), st.integers(0, 50))
def test_the_least_of_every_draft_comes_before_the_best(given_candidates, least, budget):
    survival, draft_len = given_candidates
    verify_len = np.full(len(draft_len), -7)
    allocate_budget(
        survival, draft_len, len(draft_len), least, budget, verify_len, *scratch(survival)
    )
    floor = np.minimum(draft_len, least)
    beyond = [r for _, j, r in in_order(survival, draft_len) if j >= least]
    best = beyond[: max(budget - int(floor.sum()), 0)]
    assert verify_len.tolist() == [int(floor[r]) + best.count(r) for r in range(len(draft_len))]
