"""What an acceptance source is, and how sources become arrays for one run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.acceptance.brackets import logit_brackets, normal_brackets
from dspark_sim.acceptance.kernels import AcceptanceTables, draft_block, ring_size
from dspark_sim.acceptance.luck import DIFFICULTY, normal, request_key
from dspark_sim.core import UserError
from dspark_sim.jit import kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Member:
    """One law or one pool of recorded responses, as arrays; K is its longest draft.

    `confidence` is (scale (K,), bias (K,), noise): what the drafter reports where the rate is p is
    ``sigmoid(scale * logit(p) + bias + noise * z)``.
    """

    confidence: tuple[NDArray[np.float64], NDArray[np.float64], float]
    intercept: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # by draft length
    request_sd: float = 0.0
    token_sd: float = 0.0
    responses: tuple[NDArray[np.int16], ...] = ()  # accepted length per output position
    response_confidence: tuple[NDArray[np.float32], ...] = ()  # (positions, K) each
    mapping: dict[int, int] = field(default_factory=dict)  # request index -> response


class AcceptanceSource(ABC):
    """Accept/reject outcomes with the drafter's confidence, for any request and output position.

    Attributes
    ----------
    name, origin : str
    max_draft_len : int
        Longest block the source can answer for.
    temperatures : tuple of float, optional
        T_1..T_γ fitted to its confidences, where it keeps some.
    """

    name: str
    origin: str
    temperatures: tuple[float, ...] | None = None

    @property
    @abstractmethod
    def max_draft_len(self) -> int:
        """Longest block, in draft tokens."""

    @abstractmethod
    def members(self) -> list[Member]:
        """Return the laws and pools that requests are divided among."""

    def assign(self, categories: Sequence[str]) -> NDArray[np.int32]:
        """Return the member of each request by its category, shape (n,)."""
        return np.zeros(len(categories), dtype=np.int32)

    def check_draft_len(self, draft_len: int) -> None:
        """Refuse a draft that is longer than the source can answer for."""
        if not 0 <= draft_len <= self.max_draft_len:
            raise UserError(
                f"{draft_len} draft tokens are more than acceptance '{self.name}' knows: "
                f"it answers for 0 to {self.max_draft_len}"
            )

    def tables(
        self,
        categories: Sequence[str],
        max_draft_len: int,
        confidence_scale: float = 1.0,
        confidence_bias: float = 0.0,
        temperatures: Sequence[float] | None = None,
    ) -> AcceptanceTables:
        """Bind the source to the requests of one run.

        `confidence_scale` and `confidence_bias` distort what the policy sees, on the logit;
        `temperatures`, at least `max_draft_len` of them, then divide it by draft position.
        """
        self.check_draft_len(max_draft_len)
        gamma = max(max_draft_len, 1)
        divisor = np.ones(gamma)
        if temperatures is not None:
            divisor[:max_draft_len] = np.reshape(temperatures[:max_draft_len], max_draft_len)
        belief = (confidence_scale, confidence_bias, divisor)
        return _tables(self.members(), self.assign(categories), gamma, belief)

    def block(
        self,
        request_index: NDArray[np.int64],
        output_position: NDArray[np.int64],
        draft_len: int | None = None,
        seed: int = 0,
        categories: Sequence[str] | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return confidence (n, γ) and accepted length (n,) of blocks drafted at n positions."""
        length = self.max_draft_len if draft_len is None else draft_len
        requests = np.asarray(request_index, dtype=np.int64)
        names = [""] * (int(requests.max(initial=-1)) + 1) if categories is None else categories
        bound = self.tables(names, length)
        positions = np.asarray(output_position, dtype=np.int64)
        confidence = np.zeros((len(requests), length))
        accepted = np.zeros(len(requests), dtype=np.int64)
        cursor, odds = np.zeros(3, dtype=np.int64), np.zeros(ring_size(length))
        _blocks(bound, seed, requests, positions, cursor, odds, confidence, accepted)
        return confidence, accepted


@kernel
def _blocks(
    tables: AcceptanceTables,
    seed: int,
    requests: NDArray[np.int64],
    positions: NDArray[np.int64],
    cursor: NDArray[np.int64],
    odds: NDArray[np.float64],
    confidence: NDArray[np.float64],
    accepted: NDArray[np.int64],
) -> None:
    """Write confidence (n, draft length) and accepted length (n,); the rest is scratch."""
    for i in range(len(requests)):
        key = request_key(seed, requests[i])
        cursor[0], cursor[1], cursor[2] = 0, 0, -1
        accepted[i] = draft_block(
            tables,
            requests[i],
            key,
            normal(key, -1, DIFFICULTY),
            positions[i],
            confidence.shape[1],
            True,
            cursor,
            odds,
            confidence[i],
        )


def _tables(
    members: list[Member],
    assigned: NDArray[np.int32],
    gamma: int,
    belief: tuple[float, float, NDArray[np.float64]],
) -> AcceptanceTables:
    intercept = np.zeros((len(members), gamma + 1, gamma))
    scale, bias, noise = _views(members, gamma, belief)
    first = np.full(len(assigned), -1, dtype=np.int64)
    pool_start, lengths = [0], list[int]()
    accepted: list[NDArray[np.int16]] = []
    confidences: list[NDArray[np.float32]] = []
    for index, member in enumerate(members):
        for k in range(1, gamma + 1):
            if member.intercept:
                intercept[index, k, :k] = member.intercept[k]
        for request, response in member.mapping.items():
            if request < len(first) and assigned[request] == index:
                first[request] = pool_start[-1] + response
        accepted.extend(member.responses)
        confidences.extend(block[:, :gamma] for block in member.response_confidence)
        lengths.extend(len(response) for response in member.responses)
        pool_start.append(len(lengths))
    with np.errstate(over="ignore"):
        odds_against = np.exp(-intercept)
    return AcceptanceTables(
        member=np.ascontiguousarray(assigned, dtype=np.int32),
        recorded=np.array([bool(member.responses) for member in members]),
        intercept=intercept,
        odds_against=odds_against,
        request_sd=np.array([member.request_sd for member in members]),
        token_sd=np.array([member.token_sd for member in members]),
        told_as_is=((scale == 1.0) & (bias == 0.0) & (noise == 0.0)).all(axis=1),
        confidence_scale=scale,
        confidence_bias=bias,
        confidence_noise=noise,
        pool_start=np.array(pool_start, dtype=np.int64),
        pool_response=np.arange(len(lengths), dtype=np.int64),
        first_response=first,
        response_start=np.cumsum([0, *lengths], dtype=np.int64),
        recorded_accepted=np.concatenate([*accepted, np.zeros(0, np.int16)]),
        recorded_confidence=np.concatenate(
            [*confidences, np.zeros((0, gamma), np.float32)], axis=0, dtype=np.float32
        ),
        normal_at=normal_brackets(),
        logit_at=logit_brackets(),
    )


def _views(
    members: list[Member], gamma: int, belief: tuple[float, float, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return scale, bias and noise of each member's confidence as a policy sees it, (3, L, γ).

    A drafter's confidence is linear in the logit, and so is what drift and temperatures make of it.
    """
    factor, shift, temperature = belief
    views = np.zeros((3, len(members), gamma))
    views[0] = 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        for index, (scale, bias, noise) in enumerate(member.confidence for member in members):
            width = min(gamma, len(scale))
            views[0, index, :width] = scale[:width] * factor
            views[1, index, :width] = bias[:width] * factor + shift
            views[2, index] = noise * factor
        views /= temperature
    if not np.isfinite(views).all():
        raise UserError(
            "the confidences' scale, bias and temperatures are too extreme to compute with: "
            f"scale {factor:g}, bias {shift:g}, temperatures down to {temperature.min():g}"
        )
    return views
