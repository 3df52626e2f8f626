"""The acceptance kernel: one drafted block of one request, its confidences and its outcome."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dspark_sim.acceptance.brackets import BINS, SLACK
from dspark_sim.acceptance.elementary import exponential
from dspark_sim.acceptance.luck import (
    ACCEPT,
    DIFFICULTY,
    NOISE,
    RESPONSE,
    normal,
    normal_quantile,
    uniform,
)
from dspark_sim.jit import kernel, kernel_inlined

if TYPE_CHECKING:
    from numpy.typing import NDArray


CHUNK = 8  # positions
FAR = 600.0  # logits beyond it count as this: their odds are still numbers


class AcceptanceTables(NamedTuple):
    """Laws and recordings as arrays, bound to the requests of one run.

    A request belongs to a *member*: a parametric law or a pool of recorded responses. L members,
    N requests, γ the longest draft, P recorded positions, Q recorded responses.
    """

    member: NDArray[np.int32]  # (N,)
    recorded: NDArray[np.bool_]  # (L,)
    intercept: NDArray[np.float64]  # (L, γ + 1, γ), by draft length and position
    odds_against: NDArray[np.float64]  # (L, γ + 1, γ), exp(-intercept)
    request_sd: NDArray[np.float64]  # (L,)
    token_sd: NDArray[np.float64]  # (L,)
    told_as_is: NDArray[np.bool_]  # (L,), whether the next three change nothing
    confidence_scale: NDArray[np.float64]  # (L, γ), on the logit
    confidence_bias: NDArray[np.float64]  # (L, γ)
    confidence_noise: NDArray[np.float64]  # (L, γ)
    pool_start: NDArray[np.int64]  # (L + 1,), into pool_response
    pool_response: NDArray[np.int64]  # members' responses, one after the other
    first_response: NDArray[np.int64]  # (N,), -1 where luck chooses
    response_start: NDArray[np.int64]  # (Q + 1,), into the recorded positions
    recorded_accepted: NDArray[np.int16]  # (P,)
    recorded_confidence: NDArray[np.float32]  # (P, γ)
    normal_at: NDArray[np.float64]  # (BINS + 1,), see `brackets`
    logit_at: NDArray[np.float64]  # (BINS + 1,)


@kernel_inlined
def sigmoid(x: float) -> float:
    """Return the logistic function of `x`."""
    return 1.0 / (1.0 + math.exp(-x))


@kernel
def _response(tables: AcceptanceTables, request: int, key: np.uint64, segment: int) -> int:
    if segment == 0 and tables.first_response[request] >= 0:
        return tables.first_response[request]
    member = tables.member[request]
    start = tables.pool_start[member]
    count = tables.pool_start[member + 1] - start
    pick = int(uniform(key, segment, RESPONSE) * count)
    return tables.pool_response[start + pick]


@kernel
def locate(
    tables: AcceptanceTables, request: int, key: np.uint64, position: int, cursor: NDArray[np.int64]
) -> int:
    """Return the recorded row of an output position, moving `cursor` (3,) forward.

    The cursor holds (segment, output position where it begins, response). Past the end of a
    response the request goes on with a further one of its pool, chosen by its luck.
    """
    if cursor[2] < 0:
        cursor[2] = _response(tables, request, key, 0)
    start = tables.response_start[cursor[2]]
    length = tables.response_start[cursor[2] + 1] - start
    while position - cursor[1] >= length:
        cursor[0] += 1
        cursor[1] += length
        cursor[2] = _response(tables, request, key, cursor[0])
        start = tables.response_start[cursor[2]]
        length = tables.response_start[cursor[2] + 1] - start
    return start + position - cursor[1]


def ring_size(max_draft_len: int) -> int:
    """Return the length of a ring for whole chunks of positions that hold a block: 2^n."""
    return max(CHUNK, 1 << (max_draft_len + CHUNK - 2).bit_length())


@kernel_inlined
def _recall(
    key: np.uint64,
    position: int,
    draft_len: int,
    request_part: float,
    token_sd: float,
    cursor: NDArray[np.int64],
    odds: NDArray[np.float64],
) -> None:
    """Have the ring `odds` hold a block's positions; the cursor says which chunks are in it.

    A block begins where the one before was cut, hence in the middle of what that one drew. Odds
    are drawn a chunk of positions at a time: a loop without branches runs several abreast.
    """
    first, end = position // CHUNK, (position + draft_len + CHUNK - 1) // CHUNK
    if not cursor[0] <= first <= cursor[1]:
        cursor[0] = cursor[1] = first
    for chunk in range(cursor[1], end):
        start = (chunk * CHUNK) & (len(odds) - 1)
        ring = odds[start : start + CHUNK]
        for i in range(len(ring)):
            logit = request_part + token_sd * normal(key, chunk * CHUNK + i, DIFFICULTY)
            ring[i] = exponential(min(max(-logit, -FAR), FAR))
    cursor[1] = max(cursor[1], end)
    cursor[0] = max(cursor[0], cursor[1] - len(odds) // CHUNK)


@kernel_inlined
def draft_block(
    tables: AcceptanceTables,
    request: int,
    key: np.uint64,
    level: float,
    position: int,
    draft_len: int,
    want_confidence: bool,
    cursor: NDArray[np.int64],
    odds: NDArray[np.float64],
    confidence: NDArray[np.float64],
) -> int:
    """Draft `draft_len` tokens from an output position; return how many would be accepted.

    Writes the drafter's confidence into `confidence` (γ,) if wanted. `level` is the request's
    standard normal level; the j-th token stands at output position ``position + j - 1`` and is
    tested against that position's own luck. `cursor` (3,) and `odds` (`ring_size`(γ),) remember
    what the request's next block needs again; a cursor of (0, 0, -1) remembers nothing.
    """
    member = tables.member[request]
    if tables.recorded[member]:
        row = locate(tables, request, key, position, cursor)
        if want_confidence:
            for j in range(draft_len):
                recorded = np.float64(tables.recorded_confidence[row, j])
                confidence[j] = _view(tables, member, j, recorded, key, position + j)
        return min(draft_len, tables.recorded_accepted[row])
    request_part = tables.request_sd[member] * level
    token_sd = tables.token_sd[member]
    accepted = 0
    if not want_confidence:
        while accepted < draft_len:
            base = tables.intercept[member, draft_len, accepted] + request_part
            if not _passes(tables, key, position + accepted, base, token_sd):
                break
            accepted += 1
        return accepted
    _recall(key, position, draft_len, request_part, token_sd, cursor, odds)
    alive, told = True, tables.told_as_is[member]
    for j in range(draft_len):
        against = tables.odds_against[member, draft_len, j] * odds[(position + j) & (len(odds) - 1)]
        rate = 1.0 / (1.0 + against)
        alive &= uniform(key, position + j, ACCEPT) < rate
        accepted += alive
        confidence[j] = rate if told else _view(tables, member, j, rate, key, position + j)
    return accepted


@kernel
def _passes(
    tables: AcceptanceTables, key: np.uint64, position: int, base: float, token_sd: float
) -> bool:
    """Return whether the token of a position is accepted, from the brackets where they tell."""
    luck = uniform(key, position, ACCEPT)
    hardness = uniform(key, position, DIFFICULTY)
    at, place = int(luck * BINS), int(hardness * BINS)
    if base + token_sd * tables.normal_at[place] > tables.logit_at[at + 1] + SLACK:
        return True
    if base + token_sd * tables.normal_at[place + 1] < tables.logit_at[at] - SLACK:
        return False
    return luck < sigmoid(base + token_sd * normal_quantile(hardness))


@kernel_inlined
def _view(
    tables: AcceptanceTables, member: int, j: int, rate: float, key: np.uint64, position: int
) -> float:
    """Return what the drafter reports where the truth (or the recording) says `rate`."""
    scale = tables.confidence_scale[member, j]
    bias = tables.confidence_bias[member, j]
    noise = tables.confidence_noise[member, j]
    if (scale == 1.0 and bias == 0.0 and noise == 0.0) or rate <= 0.0 or rate >= 1.0:
        return rate
    logit = scale * (math.log(rate) - math.log1p(-rate)) + bias
    if noise > 0.0:
        logit += noise * normal(key, position, NOISE)
    return sigmoid(logit)
