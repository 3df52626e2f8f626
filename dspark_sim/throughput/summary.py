"""A profile in a dozen lines: what a step costs at growing batch sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dspark_sim.throughput.profile import EngineProfile


def summarize_profile(
    profile: EngineProfile, num_requests: int | None = None, draft_len: int | None = None
) -> pd.DataFrame:
    """Step cost at powers of two, on both sides of the capture cliff and at the table's ends.

    Parameters
    ----------
    profile : EngineProfile
    num_requests : int, optional
        Adds the terms that depend on the number of requests: draft and α(R).
    draft_len : int, optional
        Length of the draft; by default the longest that was measured.

    Returns
    -------
    DataFrame
        batch_tokens, regime ("captured", "eager", "table"), verify_ms, step_ms (zero context),
        steps_per_second, verified_tok_s (= batch_tokens x steps_per_second) and, where a size was
        measured with a spread, p10_ms and p90_ms of its verification.
    """
    at = _sizes(profile)
    length = default_draft_len(profile) if draft_len is None else draft_len
    rate = profile.steps_per_second(at, num_requests, length)
    measured = profile.verify_points.set_index("batch_tokens").reindex(at)
    return pd.DataFrame(
        {
            "batch_tokens": at,
            "regime": profile.regime(at),
            "verify_ms": profile.verify_ms(at),
            "p10_ms": measured["p10_ms"].to_numpy(),
            "p90_ms": measured["p90_ms"].to_numpy(),
            "step_ms": 1000.0 / rate,
            "steps_per_second": rate,
            "verified_tok_s": at * rate,
        }
    )


def compare_profiles(
    profiles: Sequence[EngineProfile], num_requests: int | None = None
) -> pd.DataFrame:
    """Return step times (ms, zero context) of several profiles at powers of two.

    Columns: batch_tokens and one per profile, NaN outside its verify table.
    """
    last = max(profile.token_range[1] for profile in profiles)
    at = 2 ** np.arange(last.bit_length())
    table = pd.DataFrame({"batch_tokens": at})
    for profile in profiles:
        length = default_draft_len(profile) if num_requests else 0
        held = num_requests or 0
        inside = ~profile.outside_verify(at)
        column = np.full(len(at), np.nan)
        column[inside] = profile.step_ms(held, at[inside], 0, held, length)
        table[profile.name] = column
    return table


def default_draft_len(profile: EngineProfile) -> int:
    """Return the longest draft length that was measured; 0 without a draft table."""
    return 0 if profile.draft is None else int(profile.draft["draft_len"].max())


def find_dips(profile: EngineProfile, least: float = 0.02) -> np.ndarray:
    """Return the sizes that cost less than the next smaller one, by more than `least`.

    Dips are real: a larger batch may get a better kernel tile. Captured and eager sizes are
    compared among themselves.
    """
    points = profile.verify_points
    sizes, ms = points["batch_tokens"].to_numpy(), points["ms"].to_numpy()
    same = np.diff(profile.regime(sizes) == "eager") == 0
    return np.asarray(sizes[1:][same & (ms[1:] < (1.0 - least) * ms[:-1])])


def _sizes(profile: EngineProfile) -> np.ndarray:
    first, last = profile.token_range
    sizes = [2**power for power in range(last.bit_length())]
    if profile.lookup == "captured" and profile.capture_limit is not None:
        sizes += [profile.capture_limit, profile.capture_limit + 1]
    inside = [size for size in [*sizes, first, last] if first <= size <= last]
    return np.unique(inside)
