"""A fitted step time as an engine profile, with its intervals and what it cannot tell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dspark_sim.throughput.formats.build import ImportOptions, Tables, build_profile

if TYPE_CHECKING:
    from dspark_sim.throughput.profile import EngineProfile
    from dspark_sim.throughput.step_fit import StepFit

_PER_OCTAVE = 8
_DECILES = 0.8  # p10_ms to p90_ms
_NOTHING = 1e-3  # a share of the step below which a term is left out


def fitted_profile(fit: StepFit, options: ImportOptions, source: str) -> EngineProfile:
    """Return the profile of a fit: verify = θ, requests = α, draft, all with p10 and p90.

    Parameters
    ----------
    fit : StepFit
    options : ImportOptions
        Its name, and keys of profile.toml that benchmark results do not tell.
    source : str
        Where the results came from.
    """
    model = fit.model
    most = int(fit.points["concurrency"].max())
    tables = Tables(_verify(fit), _draft(fit, most), _requests(fit, most))
    told: dict[str, Any] = {
        "engine": "not stated",
        "max_num_seqs": most,
        "max_num_batched_tokens": int(tables.verify["batch_tokens"].iloc[-1]),
        "lookup": "linear",
        "draft_lookup": "linear",
        "drafter": _drafter(fit),
        "draft_in_verify": model.max_draft_len > 0 and tables.draft is None,
    }
    notes = {"source": source, **_notes(fit)}
    return build_profile(Path("fit"), options, "benchmark results", tables, told, notes)


def _drafter(fit: StepFit) -> str:
    if fit.model.max_draft_len == 0:
        return "none"
    return "autoregressive" if fit.model.draft_power == 1 else "block"


def _verify(fit: StepFit) -> pd.DataFrame:
    """Return θ at the measured sizes and eight per octave between, from one token on."""
    low, high = np.exp(fit.model.knots[[0, -1]])
    steps = int(np.ceil(np.log2(high / low) * _PER_OCTAVE)) + 1
    grid = np.round(np.geomspace(low, high, steps)).astype(np.int64)
    sizes = np.unique(np.concatenate(([1], grid, fit.measured_sizes())))
    table = fit.theta(sizes, _DECILES)
    k = fit.points["num_speculative_tokens"]
    count = (fit.points["concurrency"] * (1 + k)).value_counts()
    return pd.DataFrame(
        {
            "batch_tokens": sizes,
            "kv_tokens_read": 0,
            "ms": table["ms"].round(6),
            "p10_ms": table["low_ms"].round(6),
            "p90_ms": table["high_ms"].round(6),
            "n": count.reindex(sizes, fill_value=0).to_numpy(),
        }
    )


def _requests(fit: StepFit, most: int) -> pd.DataFrame | None:
    table = fit.requests([1, most])
    if table["ms"].iloc[-1] <= _NOTHING * fit.model.scale_ms:
        return None
    return table[["num_requests", "ms"]].round(6)


def _draft(fit: StepFit, most: int) -> pd.DataFrame | None:
    """Return what drafting costs; it is linear in the requests, and for one token or for any."""
    if fit.model.draft_power is None:
        return None
    length = 1 if fit.model.draft_power == 1 else fit.model.max_draft_len
    table = fit.draft([1, most], length, _DECILES)
    return pd.DataFrame(
        {
            "num_requests": table["num_requests"],
            "draft_len": length,
            "ms": table["ms"].round(6),
            "p10_ms": table["low_ms"].round(6),
            "p90_ms": table["high_ms"].round(6),
            "n": int((fit.points["num_speculative_tokens"] > 0).sum()),
        }
    )


def _notes(fit: StepFit) -> dict[str, str]:
    sizes = fit.measured_sizes()
    told_apart = (
        "Drafting is told apart from verification by results with and without drafts."
        if fit.model.draft_power is not None or fit.model.max_draft_len == 0
        else "The drafter's time is inside verify: no results without drafts tell it apart."
    )
    known = (
        "Acceptance lengths were reported or given."
        if fit.lengths_known
        else "No acceptance lengths were reported: step time and acceptance are not told apart; "
        "use this profile together with the acceptance fitted with it, for predictions only."
    )
    return {
        "method": (
            f"Least squares on {len(fit.points)} closed loops with T(c, k) = theta(c (1 + k)) + "
            "alpha(c) + draft(c, k) and tok/s/user = acceptance length / T. "
            f"{told_apart} {known}"
        ),
        "spread": (
            "p10_ms and p90_ms bound the fitted value with 80 %, not single steps. A result "
            f"strays {fit.noise:.1%} from the fit, a batch size that was not measured "
            f"{fit.jump:.1%} more."
        ),
        "range": (
            f"Measured from {sizes[0]} to {sizes[-1]} batch tokens; theta is held constant below. "
            "A step time fitted to benchmarks holds what their steps held on average, prefill and "
            "scheduling included: simulate with prefill none."
        ),
    }
