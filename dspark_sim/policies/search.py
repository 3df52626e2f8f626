"""Exact searches over prefixes, shared by the rules that rank draft tokens by survival.

A candidate is (request r, position j), worth its survival. Survival never rises along a request,
so a heap that holds each request's next position gives the candidates in the order
survival descending, position ascending, request ascending, without sorting those never reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@njit(cache=True)
def _before(survival: NDArray[np.float64], depth: NDArray[np.int64], a: int, b: int) -> bool:
    x, y = survival[a, depth[a]], survival[b, depth[b]]
    if x != y:
        return x > y
    if depth[a] != depth[b]:
        return depth[a] < depth[b]
    return a < b


@njit(cache=True)
def _sift_down(
    survival: NDArray[np.float64],
    depth: NDArray[np.int64],
    heap: NDArray[np.int64],
    size: int,
    root: int,
) -> None:
    item = heap[root]
    while True:
        child = 2 * root + 1
        if child >= size:
            break
        if child + 1 < size and _before(survival, depth, heap[child + 1], heap[child]):
            child += 1
        if not _before(survival, depth, heap[child], item):
            break
        heap[root] = heap[child]
        root = child
    heap[root] = item


@njit(cache=True)
def open_candidates(
    survival: NDArray[np.float64],
    draft_len: NDArray[np.int64],
    num: int,
    depth: NDArray[np.int64],
    heap: NDArray[np.int64],
) -> int:
    """Fill `heap` with requests that drafted; `depth` counts tokens taken. Return its size."""
    size = 0
    for r in range(num):
        depth[r] = 0
        if draft_len[r] > 0:
            heap[size] = r
            size += 1
    for root in range(size // 2 - 1, -1, -1):
        _sift_down(survival, depth, heap, size, root)
    return size


@njit(cache=True)
def take_candidate(
    survival: NDArray[np.float64],
    draft_len: NDArray[np.int64],
    depth: NDArray[np.int64],
    heap: NDArray[np.int64],
    size: int,
) -> int:
    """Take the best candidate: lengthen its request's prefix by one. Return the new heap size."""
    best = heap[0]
    depth[best] += 1
    if depth[best] >= draft_len[best]:
        size -= 1
        heap[0] = heap[size]
    if size > 0:
        _sift_down(survival, depth, heap, size, 0)
    return size


@njit(cache=True)
def global_budget(
    survival: NDArray[np.float64],
    draft_len: NDArray[np.int64],
    num: int,
    tokens: float,
    other_tokens: int,
    fixed_ns: int,
    verify_ns: NDArray[np.int64],
    depth: NDArray[np.int64],
    heap: NDArray[np.int64],
) -> int:
    """Return the number of draft tokens K that maximises expected tokens over step time.

    ``(tokens + sum of the K best survivals) / (fixed + verify[other_tokens + K])`` over all K, the
    smallest K on ties.
    """
    size = open_candidates(survival, draft_len, num, depth, heap)
    best_budget, best_rate = 0, -1.0
    if verify_ns[other_tokens] >= 0:
        best_rate = tokens / (fixed_ns + verify_ns[other_tokens])
    budget = 0
    while size > 0 and other_tokens + budget + 1 < len(verify_ns):
        tokens += survival[heap[0], depth[heap[0]]]
        size = take_candidate(survival, draft_len, depth, heap, size)
        budget += 1
        cost = verify_ns[other_tokens + budget]
        if cost >= 0 and tokens / (fixed_ns + cost) > best_rate:
            best_rate = tokens / (fixed_ns + cost)
            best_budget = budget
    return best_budget


@njit(cache=True)
def allocate_budget(
    survival: NDArray[np.float64],
    draft_len: NDArray[np.int64],
    num: int,
    budget: int,
    verify_len: NDArray[np.int64],
    heap: NDArray[np.int64],
) -> None:
    """Give `budget` draft tokens to the candidates of highest survival, into `verify_len`."""
    size = open_candidates(survival, draft_len, num, verify_len, heap)
    while budget > 0 and size > 0:
        size = take_candidate(survival, draft_len, verify_len, heap, size)
        budget -= 1
