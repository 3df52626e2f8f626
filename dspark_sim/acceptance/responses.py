"""Whole responses of a drafter: acceptance length, conditional acceptance, threshold sweep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.acceptance.calibration import Blocks, draw_blocks
from dspark_sim.acceptance.mixture import MixedAcceptance
from dspark_sim.acceptance.recorded import RecordedAcceptance
from dspark_sim.acceptance.replay import Rounds, replay, threshold_lengths
from dspark_sim.core import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dspark_sim.acceptance.source import AcceptanceSource

    Ints = NDArray[np.int64]

ALL = "all"
"""What the rows over all categories are called; they come last."""
THRESHOLDS = tuple(step / 20 for step in range(20))
"""Confidence thresholds of a sweep: 0, 0.05, …, 0.95."""
SWEEP_COLUMNS = (
    "category", "threshold", "rounds", "verified", "accepted", "rejected",
    "acceptance_length", "verify_budget", "acceptance_rate", "paper_acceptance",
)  # fmt: skip
_REQUESTS, _POSITIONS = 400, 64  # drawn from a law


@dataclass(frozen=True)
class Responses:
    """Whole responses: the blocks at every output position, and each response's category (R,).

    `blocks.request` counts the responses from 0.
    """

    blocks: Blocks
    category: NDArray[np.object_]
    has_confidence: bool = True

    def groups(self) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Give each category's name and mask (R,), sorted, then that of all responses."""
        for name in sorted(set(self.category) - {"", ALL}):
            yield name, self.category == name
        yield ALL, np.ones(len(self.category), dtype=bool)


def draw_responses(
    source: AcceptanceSource, draft_len: int | None = None, seed: int = 0
) -> Responses:
    """Return a recording's responses, each once and in full, or 400 of 64 positions from a law.

    A mixture gives its categories requests in turn; a plain law's have no category. `draft_len`
    cuts recorded blocks; by default they are as long as the source knows.
    """
    if isinstance(source, RecordedAcceptance):
        kinds = source.frame.groupby("request_id", sort=True)["category"].first().astype(str)
        category, known = kinds.to_numpy(dtype=object), source.has_confidence
    else:
        names = [""]
        if isinstance(source, MixedAcceptance):
            names = [*source.sources, *([] if source.default is None else [""])]
        category = np.resize(np.array(names, dtype=object), _REQUESTS)
        known = _reports_confidence(source)
    blocks = draw_blocks(source, _REQUESTS, _POSITIONS, draft_len, seed, category.tolist())
    return Responses(blocks, category, known)


def _reports_confidence(source: AcceptanceSource) -> bool:
    if isinstance(source, MixedAcceptance):
        rest = [] if source.default is None else [source.default]
        return all(_reports_confidence(part) for part in (*source.sources.values(), *rest))
    return not isinstance(source, RecordedAcceptance) or source.has_confidence


def acceptance_lengths(responses: Responses, verify_len: int | Ints | None = None) -> pd.DataFrame:
    """Return τ by category: Table 1's form of arXiv 2607.05147, one row per category and for all.

    Columns: category, responses, rounds, acceptance_length (tokens per round, bonus included) and
    standard_error (over responses). `verify_len` is that of `replay`.
    """
    rounds, rows = replay(responses.blocks, verify_len), []
    for name, mask in responses.groups():
        some = rounds.of(mask)
        rows.append((name, int(mask.sum()), len(some), *some.acceptance_length()))
    names = ["category", "responses", "rounds", "acceptance_length", "standard_error"]
    return pd.DataFrame(rows, columns=names)


def conditional_acceptance(
    responses: Responses, verify_len: int | Ints | None = None
) -> pd.DataFrame:
    """Return `Rounds.conditional` by category, its columns after category.

    With less than the whole block verified, position k is judged by the rounds that verified it.
    """
    rounds = replay(responses.blocks, verify_len)
    tables = [
        rounds.of(mask).conditional().assign(category=name) for name, mask in responses.groups()
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[["category", *table.columns.drop("category")]]


def sweep_thresholds(
    responses: Responses, thresholds: Sequence[float] = THRESHOLDS
) -> pd.DataFrame:
    """Return what a static confidence threshold verifies and wastes, by category (Fig. 5's form).

    Columns: category, threshold, rounds; per round: verified, accepted and rejected *draft* tokens
    (verified = accepted + rejected), acceptance_length = 1 + accepted and verify_budget =
    1 + verified, which include the bonus and the anchor token; acceptance_rate = accepted /
    verified, NaN where nothing is verified; and paper_acceptance = acceptance_length /
    verify_budget: the counts and the share of arXiv 2607.05147, Fig. 5, include the bonus.

    Every threshold is a replay of its own: it decides where rounds begin. What a block verifies
    never rises with it, but each mean is over other rounds.

    Raises
    ------
    UserError
        The drafter reports no confidence, or a threshold is outside 0..1.
    """
    if not responses.has_confidence:
        raise UserError("a drafter that reports no confidence has no threshold sweep")
    blocks = responses.blocks
    lengths = [threshold_lengths(blocks.confidence, threshold) for threshold in thresholds]
    replays = [replay(blocks, verify_len) for verify_len in lengths]
    rows = [
        (name, threshold, *_per_round(rounds.of(mask)))
        for name, mask in responses.groups()
        for threshold, rounds in zip(thresholds, replays, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(SWEEP_COLUMNS))


def _per_round(rounds: Rounds) -> tuple[float, ...]:
    count, verified, accepted = len(rounds), rounds.verified.sum(), rounds.accepted.sum()
    totals = (verified, accepted, verified - accepted, count + accepted, count + verified)
    means = [total / count if count else math.nan for total in totals]
    rate = accepted / verified if verified else math.nan
    return count, *means, rate, means[3] / means[4]
