import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from policy_steps import survivals

from dspark_sim.policies.search import (
    NUM_BUCKETS,
    allocate_budget,
    global_budget,
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
    depth, heap = np.full((2, len(draft_len)), -7)
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
    allocate_budget(survival, draft_len, len(draft_len), budget, verify_len, *scratch(survival))
    best = [r for _, _, r in in_order(survival, draft_len)[:budget]]
    assert verify_len.tolist() == [best.count(r) for r in range(len(draft_len))]


@given(candidates(), st.integers(0, 9), st.integers(1, 40), st.integers(0, 40), st.data())
def test_the_budget_is_the_first_of_the_best_over_all_budgets(
    given_candidates, others, tokens, fixed_ns, data
):
    survival, draft_len = given_candidates
    cost = st.integers(1, 60) | st.just(-1)
    reach = others + 1 + int(draft_len.sum())
    verify_ns = data.draw(st.lists(cost, min_size=others + 1, max_size=reach + 3))
    budget = global_budget(
        survival,
        draft_len,
        len(draft_len),
        float(tokens),
        others,
        fixed_ns,
        np.array(verify_ns),
        *scratch(survival),
    )
    expected, best, best_rate = float(tokens), 0, 0.0
    for k, worth in enumerate([0.0, *(-a for a, _, _ in in_order(survival, draft_len))]):
        expected += worth
        if others + k < len(verify_ns) and verify_ns[others + k] > 0:
            rate = expected / (fixed_ns + verify_ns[others + k])
            if rate > best_rate:
                best, best_rate = k, rate
    assert budget == best


def test_only_the_first_requests_count():
    survival, draft_len = np.array([[0.1], [0.9]]), np.array([1, 1])
    verify_len = np.full(2, -7)
    allocate_budget(survival, draft_len, 1, 5, verify_len, *scratch(survival))
    assert verify_len.tolist() == [1, -7]
