"""Walk requests block by block with every draft verified, and judge the pooled numbers."""

from typing import NamedTuple

import numpy as np


class Walk(NamedTuple):
    """Rounds of all requests: who, where the block began, what was accepted and reported."""

    request: np.ndarray  # (n,)
    position: np.ndarray  # (n,)
    accepted: np.ndarray  # (n,)
    confidence: np.ndarray  # (n, k)


def walk(source, num_requests, tokens, draft_len=None, seed=0):
    """Verify full blocks until every request has `tokens` output tokens."""
    position = np.zeros(num_requests, dtype=np.int64)
    rounds = []
    while (running := np.flatnonzero(position < tokens)).size:
        categories = [""] * num_requests
        begin = position[running]
        confidence, accepted = source.block(running, begin, draft_len, seed, categories)
        rounds.append((running, begin, accepted, confidence))
        position[running] += accepted + 1
    return Walk(*(np.concatenate(column) for column in zip(*rounds, strict=True)))


def standard_score(request, value, weight, expected):
    """Return how many standard errors Σvalue / Σweight lies from `expected`.

    Requests differ, so they, not rounds, are the independent units of the ratio's error.
    """
    gap = np.bincount(request, value - expected * weight)
    return gap.sum() / np.sqrt((gap**2).sum())


def rate_scores(rounds, rates):
    """Return the standard score of the pooled conditional acceptance at every position."""
    scores = []
    for j, rate in enumerate(rates):
        reached = (rounds.accepted >= j).astype(float)
        kept = (rounds.accepted >= j + 1).astype(float)
        scores.append(standard_score(rounds.request, kept, reached, rate))
    return np.array(scores)


def length_score(rounds, acceptance_length):
    """Return the standard score of the tokens per round, bonus included."""
    tokens = rounds.accepted + 1.0
    return standard_score(rounds.request, tokens, np.ones_like(tokens), acceptance_length)
