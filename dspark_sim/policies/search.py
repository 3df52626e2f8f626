"""Exact searches over prefixes, shared by the rules that rank draft tokens by survival.

A candidate is (request r, position j), worth its survival. Their order is survival descending,
position ascending, request ascending; since survival never rises along a request, it respects
prefixes. They are sorted by buckets, which costs a few nanoseconds a candidate; a rule that stops
early sorts within the buckets that it reaches. A rule that goes on from lengths it has chosen
already takes candidates from a heap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.jit import kernel, kernel_inlined

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


# Buckets of survival: up to 128 to an octave, from 1 down to 2^-12; the last has what is smaller.
NUM_BUCKETS = 12 * 128 + 1
_MANTISSA_BITS, _BIAS = 52, 1023


@kernel_inlined
def _fineness(candidates: int) -> int:
    """Return how many bits of the mantissa tell buckets apart: fewer buckets for few candidates."""
    return 7 if candidates > 512 else 5 if candidates > 128 else 3


@kernel_inlined
def _bucket(bits: int, fineness: int) -> int:
    """Return the bucket of a survival given as the bits of its float, larger ones first."""
    place = (_BIAS << fineness) - (bits >> (_MANTISSA_BITS - fineness))
    return min(max(place, 0), 12 << fineness)


@kernel_inlined
def _count(
    bits: NDArray[np.int64],
    draft_len: NDArray[np.int64],
    num: int,
    least: int,
    fineness: int,
    buckets: NDArray[np.int64],
) -> None:
    for b in range((12 << fineness) + 1):
        buckets[b] = 0
    for r in range(num):
        for j in range(least, draft_len[r]):
            buckets[_bucket(bits[r, j], fineness)] += 1


@kernel_inlined
def _insert(
    worth: NDArray[np.float64], order: NDArray[np.int64], place: int, candidate: int
) -> None:
    """Put a candidate into the sorted first `place` of `order`, behind its equals."""
    while place > 0 and worth[order[place - 1]] < worth[candidate]:
        order[place] = order[place - 1]
        place -= 1
    order[place] = candidate


@kernel
def spread_candidates(
    survival: NDArray[np.float64],
    draft_len: NDArray[np.int64],
    num: int,
    order: NDArray[np.int64],
    buckets: NDArray[np.int64],
) -> int:
    """Write all candidates, each as its index r * γ + j, bucket after bucket; return their number.

    `buckets` then says where each bucket ends; within one the order is not yet that of survival.
    """
    bits, gamma = survival.view(np.int64), survival.shape[1]
    fineness = _fineness(num * gamma)
    _count(bits, draft_len, num, 0, fineness, buckets)
    total = 0
    for b in range((12 << fineness) + 1):
        here = buckets[b]
        buckets[b] = total
        total += here
    for j in range(gamma):
        for r in range(num):
            if j < draft_len[r]:
                b = _bucket(bits[r, j], fineness)
                order[buckets[b]] = r * gamma + j
                buckets[b] += 1
    return total


@kernel_inlined
def sort_places(
    survival: NDArray[np.float64], order: NDArray[np.int64], first: int, end: int
) -> None:
    """Sort the spread candidates from place `first` up to `end`, where a bucket ends."""
    worth = survival.reshape(-1)
    for place in range(first + 1, end):
        _insert(worth, order, place, order[place])


@kernel
def rank_candidates(
    survival: NDArray[np.float64],
    draft_len: NDArray[np.int64],
    num: int,
    order: NDArray[np.int64],
    buckets: NDArray[np.int64],
) -> int:
    """Write all candidates in order, each as its index r * γ + j; return how many there are."""
    total = spread_candidates(survival, draft_len, num, order, buckets)
    sort_places(survival, order, 0, total)
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
    fineness = _fineness(num * gamma)
    _count(bits, draft_len, num, least, fineness, buckets)
    for r in range(num):
        verify_len[r] = min(least, draft_len[r])
        budget -= verify_len[r]
    edge = 0
    while edge <= 12 << fineness and budget >= buckets[edge]:
        budget -= buckets[edge]
        edge += 1
    waiting = 0
    for j in range(least, gamma):
        for r in range(num):
            if j < draft_len[r]:
                b = _bucket(bits[r, j], fineness)
                if b < edge:
                    verify_len[r] = j + 1
                elif b == edge:
                    _insert(worth, order, waiting, r * gamma + j)
                    waiting += 1
    for place in range(min(waiting, budget)):
        verify_len[order[place] // gamma] += 1
