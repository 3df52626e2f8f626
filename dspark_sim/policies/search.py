"""Exact searches over prefixes, shared by the rules that rank draft tokens by survival.

A candidate is (request r, position j), worth its survival. Their order is survival descending,
position ascending, request ascending; since survival never rises along a request, it respects
prefixes. A rule that stops early takes candidates from a heap, which sorts only what is reached;
a rule that looks at all of them sorts by buckets, which costs a few nanoseconds a candidate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray


@kernel
def _before(survival: NDArray[np.float64], depth: NDArray[np.int64], a: int, b: int) -> bool:
    x, y = survival[a, depth[a]], survival[b, depth[b]]
    if x != y:
        return x > y
    if depth[a] != depth[b]:
        return depth[a] < depth[b]
    return a < b


@kernel
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


@kernel
def open_candidates(
    survival: NDArray[np.float64],
    draft_len: NDArray[np.int64],
    num: int,
    depth: NDArray[np.int64],
    heap: NDArray[np.int64],
) -> int:
    """Fill `heap` with requests that have tokens beyond the `depth` taken so far; return its size.

    `depth` says how many tokens of each draft are taken already.
    """
    size = 0
    for r in range(num):
        if depth[r] < draft_len[r]:
            heap[size] = r
            size += 1
    for root in range(size // 2 - 1, -1, -1):
        _sift_down(survival, depth, heap, size, root)
    return size


@kernel
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


# Buckets of survival: 128 to an octave, from 1 down to 2^-12; all that is smaller shares the last.
NUM_BUCKETS = 12 * 128 + 1
_MANTISSA_BITS_DROPPED = 45
_BITS_OF_ONE = 1023 << 7


@kernel
def _bucket(bits: int) -> int:
    """Return the bucket of a survival given as the bits of its float, larger ones first."""
    place = _BITS_OF_ONE - (bits >> _MANTISSA_BITS_DROPPED)
    return min(max(place, 0), NUM_BUCKETS - 1)


@kernel
def _count(
    bits: NDArray[np.int64],
    draft_len: NDArray[np.int64],
    num: int,
    least: int,
    buckets: NDArray[np.int64],
) -> None:
    buckets[:] = 0
    for r in range(num):
        for j in range(least, draft_len[r]):
            buckets[_bucket(bits[r, j])] += 1


@kernel
def _insert(
    worth: NDArray[np.float64], order: NDArray[np.int64], place: int, candidate: int
) -> None:
    """Put a candidate into the sorted first `place` of `order`, behind its equals."""
    while place > 0 and worth[order[place - 1]] < worth[candidate]:
        order[place] = order[place - 1]
        place -= 1
    order[place] = candidate


@kernel
def rank_candidates(
    survival: NDArray[np.float64],
    draft_len: NDArray[np.int64],
    num: int,
    order: NDArray[np.int64],
    buckets: NDArray[np.int64],
) -> int:
    """Write all candidates in order, each as its index r * γ + j; return how many there are."""
    bits, worth, gamma = survival.view(np.int64), survival.reshape(-1), survival.shape[1]
    _count(bits, draft_len, num, 0, buckets)
    total = 0
    for b in range(NUM_BUCKETS):
        here = buckets[b]
        buckets[b] = total
        total += here
    for j in range(gamma):
        for r in range(num):
            if j < draft_len[r]:
                b = _bucket(bits[r, j])
                order[buckets[b]] = r * gamma + j
                buckets[b] += 1
    for place in range(1, total):
        _insert(worth, order, place, order[place])
    return total


@kernel
def allocate_budget(
    survival: NDArray[np.float64],
    draft_len: NDArray[np.int64],
    num: int,
    least: int,
    budget: int,
    verify_len: NDArray[np.int64],
    order: NDArray[np.int64],
    buckets: NDArray[np.int64],
) -> None:
    """Give `budget` draft tokens to the candidates of highest survival, into `verify_len`.

    The first `least` tokens of every draft come before all others. Whole buckets are given at
    once; only the one where the budget ends is sorted.
    """
    bits, worth, gamma = survival.view(np.int64), survival.reshape(-1), survival.shape[1]
    _count(bits, draft_len, num, least, buckets)
    for r in range(num):
        verify_len[r] = min(least, draft_len[r])
        budget -= verify_len[r]
    edge = 0
    while edge < NUM_BUCKETS and budget >= buckets[edge]:
        budget -= buckets[edge]
        edge += 1
    waiting = 0
    for j in range(least, gamma):
        for r in range(num):
            if j < draft_len[r]:
                b = _bucket(bits[r, j])
                if b < edge:
                    verify_len[r] = j + 1
                elif b == edge:
                    _insert(worth, order, waiting, r * gamma + j)
                    waiting += 1
    for place in range(min(waiting, budget)):
        verify_len[order[place] // gamma] += 1
