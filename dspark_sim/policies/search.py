"""Exact searches over prefixes, shared by the rules that rank draft tokens by survival.

A candidate is (request r, position j), worth its survival. Their order is survival descending,
position ascending, request ascending; since survival never rises along a request, it respects
prefixes. They are sorted by buckets, which costs a few nanoseconds a candidate; a rule that stops
early sorts within the buckets that it reaches. A rule that goes on from lengths it has chosen
already takes candidates from a heap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dspark_sim.jit import kernel, kernel_inlined

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_BUCKETS = 65 * 32 + 1


class Scratch(NamedTuple):
    """What the searches over R requests of γ candidates write to; few arrays compile faster."""

    order: NDArray[np.int64]  # (R * γ,), of candidates, or of requests
    buckets: NDArray[np.int64]  # (NUM_BUCKETS + R * γ,): of each bucket, then of each candidate


def new_scratch(num_requests: int, max_draft_len: int) -> Scratch:
    """Return room for searches over so many requests with drafts of γ tokens at most."""
    size = num_requests * max_draft_len
    return Scratch(np.zeros(size, dtype=np.int64), np.zeros(NUM_BUCKETS + size, dtype=np.int64))


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


# Buckets of survival, the larger first: the leading bits of survival + 1/16, hence even between
# powers of two and half as wide below 15/16, 7/16, 3/16 and 1/16 as above.
_MANTISSA_BITS, _OFFSET = 52, 1.0 / 16.0


@kernel_inlined
def _fineness(candidates: int) -> int:
    """Return how many bits of the mantissa tell buckets apart: fewer buckets for few candidates."""
    return 9 if candidates > 1024 else 8 if candidates > 256 else 7 if candidates > 64 else 5


@kernel_inlined
def _last(fineness: int) -> int:
    """Return the number of the last bucket, of survival 0."""
    return 65 << fineness >> 4


@kernel_inlined
def _count(
    survival: NDArray[np.float64],
    draft_len: NDArray[np.int64],
    num: int,
    least: int,
    fineness: int,
    scratch: Scratch,
) -> None:
    """Write the bucket of every candidate from `least` on, and how many each bucket holds."""
    gamma, worth, shift = survival.shape[1], survival.reshape(-1), _MANTISSA_BITS - fineness
    top, last = np.float64(1.0 + _OFFSET).view(np.int64) >> shift, _last(fineness)
    bucket = scratch.buckets[NUM_BUCKETS:]
    for i in range(num * gamma):  # of all at once: a loop without branches runs several abreast
        place = top - (np.float64(worth[i] + _OFFSET).view(np.int64) >> shift)
        bucket[i] = min(max(int(place), 0), last)
    for b in range(last + 1):
        scratch.buckets[b] = 0
    for r in range(num):
        for j in range(least, draft_len[r]):
            scratch.buckets[bucket[r * gamma + j]] += 1


@kernel_inlined
def _open_buckets(fineness: int, scratch: Scratch) -> int:
    """Turn the numbers of candidates into where each bucket begins; return how many there are."""
    total = 0
    for b in range(_last(fineness) + 1):
        here = scratch.buckets[b]
        scratch.buckets[b] = total
        total += here
    return total


@kernel
def rank_survivals(
    survival: NDArray[np.float64],
    draft_len: NDArray[np.int64],
    num: int,
    least: int,
    scratch: Scratch,
) -> int:
    """Write the survivals of all candidates from `least` on into `order`, the largest first.

    They are its bytes read as floats. Returns how many there are.
    """
    gamma, worth = survival.shape[1], survival.reshape(-1)
    ranking = scratch.order.view(np.float64)
    bucket = scratch.buckets[NUM_BUCKETS:]
    fineness = _fineness(num * gamma)
    _count(survival, draft_len, num, least, fineness, scratch)
    total = _open_buckets(fineness, scratch)
    for r in range(num):
        for j in range(least, draft_len[r]):
            b = bucket[r * gamma + j]
            ranking[scratch.buckets[b]] = worth[r * gamma + j]
            scratch.buckets[b] += 1
    for end in range(1, total):
        value, place = ranking[end], end
        while place > 0 and ranking[place - 1] < value:
            ranking[place] = ranking[place - 1]
            place -= 1
        ranking[place] = value
    return total


@kernel_inlined
def _insert(
    worth: NDArray[np.float64], gamma: int, order: NDArray[np.int64], place: int, candidate: int
) -> None:
    """Put a candidate into the sorted first `place` of `order`; requests come in ascending."""
    while place > 0:
        before = order[place - 1]
        if worth[before] > worth[candidate]:
            break
        if worth[before] == worth[candidate] and before % gamma <= candidate % gamma:
            break
        order[place] = before
        place -= 1
    order[place] = candidate


@kernel
def spread_candidates(
    survival: NDArray[np.float64], draft_len: NDArray[np.int64], num: int, scratch: Scratch
) -> int:
    """Write all candidates into `order`, bucket after bucket; return how many there are.

    A candidate is written as its index r * γ + j. `buckets` then says where each bucket ends;
    within one the order is not yet that of survival.
    """
    gamma, bucket = survival.shape[1], scratch.buckets[NUM_BUCKETS:]
    fineness = _fineness(num * gamma)
    _count(survival, draft_len, num, 0, fineness, scratch)
    total = _open_buckets(fineness, scratch)
    for r in range(num):
        for candidate in range(r * gamma, r * gamma + draft_len[r]):
            b = bucket[candidate]
            scratch.order[scratch.buckets[b]] = candidate
            scratch.buckets[b] += 1
    return total


@kernel_inlined
def sort_places(
    worth: NDArray[np.float64], gamma: int, order: NDArray[np.int64], first: int, end: int
) -> None:
    """Sort the spread candidates from place `first` up to `end`, where a bucket ends."""
    for place in range(first + 1, end):
        _insert(worth, gamma, order, place, order[place])


@kernel
def allocate_budget(
    survival: NDArray[np.float64],
    draft_len: NDArray[np.int64],
    num: int,
    least: int,
    budget: int,
    verify_len: NDArray[np.int64],
    scratch: Scratch,
) -> None:
    """Give `budget` draft tokens to the candidates of highest survival, into `verify_len`.

    The first `least` tokens of every draft come before all others. Whole buckets are given at
    once; only the one where the budget ends is sorted.
    """
    gamma, worth = survival.shape[1], survival.reshape(-1)
    bucket = scratch.buckets[NUM_BUCKETS:]
    fineness = _fineness(num * gamma) - 2  # only one bucket is sorted
    _count(survival, draft_len, num, least, fineness, scratch)
    for r in range(num):
        verify_len[r] = min(least, draft_len[r])
        budget -= verify_len[r]
    edge = 0
    while edge <= _last(fineness) and budget >= scratch.buckets[edge]:
        budget -= scratch.buckets[edge]
        edge += 1
    waiting = 0
    for r in range(num):
        given = 0
        for candidate in range(r * gamma + least, r * gamma + draft_len[r]):
            b = bucket[candidate]
            given += b < edge
            if b == edge:
                _insert(worth, gamma, scratch.order, waiting, candidate)
                waiting += 1
        verify_len[r] += given
    for place in range(min(waiting, budget)):
        verify_len[scratch.order[place] // gamma] += 1
