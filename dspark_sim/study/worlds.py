"""Tiny worlds: every probability of a target, a drafter and its confidence, as tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import unknown_name
from dspark_sim.policies import BelievedCost, DraftView, SchedulerView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

# Requests, γ and vocabulary of the random worlds, one after the other.
SHAPES = ((1, 2, 2), (2, 2, 2), (1, 2, 3), (1, 3, 2), (3, 2, 2), (2, 2, 3), (2, 3, 2))
NUM_RANDOM_WORLDS = 21


@dataclass(frozen=True)
class Tables:
    """What one request may say, for a vocabulary of V tokens; k counts positions from 1.

    Attributes
    ----------
    target : tuple of arrays, k = 1..γ+1, shape (V,) * k
        p_t(x_k | x_<k) on the last axis.
    draft : tuple of arrays, k = 1..γ, shape (V,) * k
        p_d(x_k | x_<k) on the last axis.
    confidence : tuple of arrays, k = 1..γ, shape (V,) * (k - 1)
        c_k as a function of x_<k; of shape (V,) * k it looks at the sampled token x_k too.
    """

    target: tuple[Floats, ...]
    draft: tuple[Floats, ...]
    confidence: tuple[Floats, ...]

    @property
    def gamma(self) -> int:
        """γ, tokens drafted."""
        return len(self.draft)

    def reported(self, block: Sequence[int]) -> Floats:
        """Return the confidences c_1..c_γ that go with a drafted block, shape (γ,)."""
        return np.array([table[tuple(block[: table.ndim])] for table in self.confidence])


@dataclass(frozen=True)
class World:
    """One decoding step of a few requests, whose output can be enumerated exactly.

    Attributes
    ----------
    name : str
    requests : tuple of Tables
        One for each of the R requests, all of the same γ and vocabulary.
    verify_ns : (M + 1,)
        Cost of a target pass by batch tokens.
    history : (R, 3, γ)
        Survival of earlier blocks, newest first, independent of this step's drafts.
    prefill_tokens : int
        Prompt tokens in the step.
    """

    name: str
    requests: tuple[Tables, ...]
    verify_ns: Ints
    history: Floats
    prefill_tokens: int = 0

    def draft_view(self, *, monotone: bool = False) -> DraftView:
        """Return what a policy sees before drafting, its cost table rising only if `monotone`."""
        num, gamma = len(self.requests), self.requests[0].gamma
        verify_ns = np.maximum.accumulate(self.verify_ns) if monotone else self.verify_ns
        draft_ns = np.zeros((num + 1, gamma + 1), dtype=np.int64)
        return DraftView(
            time_s=0.0,
            request=np.arange(num),
            context_tokens=np.full(num, 100),
            output_tokens=np.full(num, 10),
            decode_steps=np.full(num, 3),
            last_verify_len=np.ones(num, dtype=np.int64),
            last_accepted=np.ones(num, dtype=np.int64),
            history=self.history,
            prefill_tokens=self.prefill_tokens,
            num_sampling=num,
            num_waiting=0,
            cost=BelievedCost(verify_ns, draft_ns, 0),
            max_draft_len=gamma,
        )

    def view(
        self, before: DraftView, draft_len: Ints, blocks: Sequence[Sequence[int]]
    ) -> SchedulerView:
        """Return what a policy sees once these blocks are drafted."""
        confidence = np.array(
            [tables.reported(block) for tables, block in zip(self.requests, blocks, strict=True)]
        )
        confidence[np.arange(before.max_draft_len) >= draft_len[:, None]] = 0.0
        return SchedulerView(**vars(before), draft_len=draft_len.copy(), confidence=confidence)


def appendix_a() -> World:
    """Return the counterexample of arXiv 2607.05147, Appendix A, with tokens A = 0 and B = 1.

    SPS(1, 2, 3) = 1, 0.5, 0.45 and a_1 = 0.8; after A the drafter is trusted (c_2 = 0.9), after B
    it is hopeless (c_2 = 0). A search that sees c_2 before it decides on x_1 gives (0.85, 0.15).
    """
    tables = Tables(
        target=(
            np.array([0.7, 0.3]),
            np.array([[0.6, 0.4], [1.0, 0.0]]),
            np.array([[[0.5, 0.5], [0.2, 0.8]], [[0.9, 0.1], [0.4, 0.6]]]),
        ),
        draft=(np.array([0.5, 0.5]), np.array([[0.5, 0.5], [0.0, 1.0]])),
        confidence=(np.array(0.8), np.array([0.9, 0.0])),
    )
    history = np.tile(np.array([0.8, 0.72]), (1, 3, 1))
    return World("appendix-a", (tables,), np.array([0, 9, 18, 20]), history)


def random_world(rng: np.random.Generator, name: str, shape: tuple[int, int, int]) -> World:
    """Draw a world of `shape` = (R, γ, V): any tables, many ties, a trap of costs.

    Costs are a jagged staircase whose next stair the first draft token climbs. It rarely pays for
    that stair alone, so that a search which looks at later tokens decides by them.
    """
    num, gamma, vocabulary = shape
    requests = tuple(_random_tables(rng, gamma, vocabulary) for _ in range(num))
    prefill = int(rng.integers(0, 3))
    tokens = np.arange(num * (gamma + 1) + prefill + 1)
    width, jump = rng.integers(2, 5), rng.integers(4, 14)
    stairs = 10 * num + jump * (1 + (tokens - num - prefill - 1) // width)
    earlier = np.asarray(rng.integers(1, 9, size=(num, 3, gamma)) / 8, dtype=np.float64)
    return World(
        name,
        requests,
        np.maximum(stairs + rng.integers(-1, 2, size=tokens.size), 0).astype(np.int64),
        np.cumprod(earlier, axis=2, dtype=np.float64),
        prefill,
    )


def default_worlds(seed: int = 0) -> tuple[World, ...]:
    """Return Appendix A and random worlds of one to three requests, γ = 2 or 3, V = 2 or 3."""
    rng = np.random.default_rng(seed)
    drawn = [
        random_world(rng, f"random-{i}", SHAPES[i % len(SHAPES)]) for i in range(NUM_RANDOM_WORLDS)
    ]
    return (appendix_a(), *drawn)


def with_greedy_drafts(world: World) -> World:
    """Return a world whose drafter always proposes its most likely token."""

    def greedy(table: Floats) -> Floats:
        return np.eye(table.shape[-1])[table.argmax(axis=-1)]

    requests = tuple(
        replace(tables, draft=tuple(greedy(table) for table in tables.draft))
        for tables in world.requests
    )
    return replace(world, requests=requests)


def with_token_confidence(world: World) -> World:
    """Return a world whose confidence is the draft's probability of the sampled token x_k."""
    requests = tuple(replace(tables, confidence=tables.draft) for tables in world.requests)
    return replace(world, requests=requests)


SETTINGS: dict[str, Callable[[World], World]] = {
    "sampled": lambda world: world,
    "greedy": with_greedy_drafts,
    "token-confidence": with_token_confidence,
}


def in_setting(worlds: Sequence[World], setting: str) -> list[World]:
    """Return the worlds under one of `SETTINGS`: how they draft and what confidence looks at."""
    if setting not in SETTINGS:
        raise unknown_name("setting", setting, SETTINGS)
    return [SETTINGS[setting](world) for world in worlds]


def _random_tables(rng: np.random.Generator, gamma: int, vocabulary: int) -> Tables:
    def conditional(k: int) -> Floats:
        return rng.dirichlet(np.full(vocabulary, 0.8), size=(vocabulary,) * (k - 1))

    first = np.array(rng.integers(2, 8) / 8)
    later = [np.round(rng.beta(0.5, 0.5, (vocabulary,) * k) * 8) / 8 for k in range(1, gamma)]
    return Tables(
        target=tuple(conditional(k) for k in range(1, gamma + 2)),
        draft=tuple(conditional(k) for k in range(1, gamma + 1)),
        confidence=(first, *later),
    )
