"""Replay of whole responses, each alone: which rounds there are, and what each one verifies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.acceptance.ratio import ratio_with_error
from dspark_sim.core import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dspark_sim.acceptance.calibration import Blocks

    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Rounds:
    """Draft-verify rounds of some responses, in order of response and output position.

    response, position (m,): where a round's block begins; verified, accepted (m,): draft tokens,
    without anchor and bonus, accepted ≤ verified ≤ `draft_len` = γ.
    """

    response: Ints
    position: Ints
    verified: Ints
    accepted: Ints
    draft_len: int

    def __len__(self) -> int:
        return len(self.response)

    def acceptance_length(self) -> tuple[float, float]:
        """Return tokens per round, bonus included, with the standard error over responses."""
        return ratio_with_error((1 + self.accepted).astype(np.float64), self.response)

    def conditional(self) -> pd.DataFrame:
        """Return how often position k is accepted where all before it were, one row per position.

        Columns: position (1..γ), reached (rounds that verified position k and accepted all before
        it), accepted (how many of these accepted it too), conditional (their share, Fig. 2 of
        arXiv 2607.05147) and standard_error (over responses).
        """
        rows = []
        for k in range(1, self.draft_len + 1):
            reached = (self.verified >= k) & (self.accepted >= k - 1)
            passed = self.accepted[reached] >= k
            share = ratio_with_error(passed.astype(np.float64), self.response[reached])
            rows.append((k, int(reached.sum()), int(passed.sum()), *share))
        names = ["position", "reached", "accepted", "conditional", "standard_error"]
        return pd.DataFrame(rows, columns=names)

    def of(self, responses: NDArray[np.bool_]) -> Rounds:
        """Return the rounds of some responses, given as a mask over all of them."""
        return self._where(responses[self.response])

    def _where(self, rows: NDArray[np.bool_]) -> Rounds:
        return Rounds(
            self.response[rows],
            self.position[rows],
            self.verified[rows],
            self.accepted[rows],
            self.draft_len,
        )


def replay(blocks: Blocks, verify_len: int | Ints | None = None) -> Rounds:
    """Return the rounds of each response when it runs alone.

    The first round begins at output position 1: position 0 comes from the prefill. A round
    verifies ℓ tokens of the block drafted where it begins and commits 1 + min(accepted, ℓ); the
    next begins behind them. None begins after the last position that `blocks` holds, and the last
    one counts uncut, as in the simulator.

    Parameters
    ----------
    blocks
        Every block of every response, in order from position 0, as from `draw_blocks`.
    verify_len
        ℓ: one number, or one per block (n,), as from `threshold_lengths`; cut to γ. None verifies
        whole blocks.

    Raises
    ------
    UserError
        ℓ is negative or is not given for every block.
    """
    gamma, count = blocks.confidence.shape[1], len(blocks.accepted)
    lengths = np.asarray(gamma if verify_len is None else verify_len)
    if lengths.dtype.kind not in "iu" or lengths.shape not in ((), (count,)):
        raise UserError(f"verify_len must be one whole number, or one for each of {count} blocks")
    if lengths.min(initial=0) < 0:
        raise UserError(f"verify_len must be 0 or more, got {lengths.min()}")
    verified = np.broadcast_to(np.minimum(lengths, gamma).astype(np.int64), (count,))
    accepted = np.minimum(blocks.accepted, verified)
    starts = np.flatnonzero(np.diff(blocks.request, prepend=-1))
    position = np.arange(count) - np.repeat(starts, np.diff(starts, append=count))
    every = Rounds(blocks.request, position, verified, accepted, gamma)
    return every._where(where_rounds_begin(blocks.request, accepted))


def where_rounds_begin(response: Ints, accepted: Ints) -> NDArray[np.bool_]:
    """Return a mask (n,): blocks that are drafted when each round commits `accepted` (n,) + 1."""
    starts = np.flatnonzero(np.diff(response, prepend=-1))
    begins = np.zeros(len(response), dtype=bool)
    at, ends = starts + 1, np.append(starts[1:], len(response))
    while (alive := at < ends).any():
        at, ends = at[alive], ends[alive]
        begins[at] = True
        at = at + 1 + accepted[at]
    return begins


def threshold_lengths(confidence: NDArray[np.float64], threshold: float) -> Ints:
    """Return ℓ (n,) of blocks (n, γ): tokens before the first whose confidence is below.

    The rule of the policy `threshold:TAU` (arXiv 2607.05147, Fig. 5): raw confidence of each token,
    compared in double precision.
    """
    if not 0.0 <= threshold <= 1.0:
        raise UserError(f"a confidence threshold lies in 0..1, got {threshold:g}")
    kept = np.asarray(confidence, dtype=np.float64) >= threshold
    return np.logical_and.accumulate(kept, axis=1).sum(axis=1)
