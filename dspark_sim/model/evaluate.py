"""How well a drafter guesses a target: accepted length and conditional acceptance by domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.model.speculate import StepRecord, VerifyLengths, speculate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from dspark_sim.model.drafters import Drafter
    from dspark_sim.model.generate import Decoding
    from dspark_sim.model.transformer import Transformer


@dataclass(frozen=True)
class Acceptance:
    """What real speculation came to in one domain.

    acceptance_length: tokens per request and step, bonus included (Table 1's form), with the
    standard error over requests; conditional (γ,): share of rounds that accept position k among
    those that accepted all before it (Fig. 2's form); rounds: draft-verify rounds behind it.
    """

    domain: str
    acceptance_length: float
    standard_error: float
    conditional: tuple[float, ...]
    rounds: int


def acceptance(
    records: Iterable[StepRecord], gamma: int, domain: str = "", last_position: int | None = None
) -> Acceptance:
    """Summarise rounds; those that begin after output position `last_position` do not count."""
    kept = [r for r in records if last_position is None or r.position <= last_position]
    accepted = np.array([r.accepted for r in kept])
    reached = np.array([(accepted >= k).sum() for k in range(gamma + 1)], dtype=float)
    conditional = reached[1:] / np.maximum(reached[:-1], 1)
    requests = np.array([r.request for r in kept])
    length, error = ratio_with_error(accepted + 1.0, requests)
    return Acceptance(domain, length, error, tuple(conditional.tolist()), len(kept))


def ratio_with_error(values: NDArray[np.float64], groups: NDArray[np.int64]) -> tuple[float, float]:
    """Return the mean of `values` and its standard error when whole groups are the sample."""
    _, index = np.unique(groups, return_inverse=True)
    sums, counts = np.bincount(index, values), np.bincount(index)
    mean = float(values.mean())
    if len(sums) < 2:
        return mean, float("nan")
    spread = np.std(sums - mean * counts, ddof=1) / np.sqrt(len(sums)) / counts.mean()
    return mean, float(spread)


def evaluate(
    model: Transformer,
    drafter: Drafter,
    asked: Sequence[tuple[str, list[int]]],
    c: Decoding,
    verify_lengths: VerifyLengths | None = None,
) -> list[Acceptance]:
    """Speculate on (domain, prompt) pairs, all of a domain in one batch; one row per domain."""
    rows = []
    for domain in dict.fromkeys(name for name, _ in asked):
        texts = [ids for name, ids in asked if name == domain]
        result = speculate(model, drafter, texts, c, verify_lengths)
        rows.append(acceptance(result.records, drafter.gamma, domain))
    return rows
