"""A trace in numbers: how many, how fast, how long, how bursty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from dspark_sim.trace.trace import Trace

PEAK_WINDOW_S = 60.0


def summarize(trace: Trace) -> dict[str, Any]:
    """Describe a trace as plain numbers, ready for a table or JSON.

    - `num_requests`, `duration_s` (first to last arrival), `request_rate_per_s` (gaps over
      duration), `total_prompt_tokens`, `total_output_tokens`
    - `prompt_tokens`, `output_tokens`: `mean`, `p50`, `p90`, `p99`, `max` (linear percentiles)
    - `interarrival_cv`: standard deviation over mean of the gaps; 1 for Poisson, above 1 for bursts
    - `peak_rate_per_s`: most arrivals in any 60 s, over 60 s; `peak_to_mean`: over the mean rate
    - `categories`: requests of each, largest first, "" for none

    None stands for what a trace has not: a rate for one instant, a peak in less than 60 s.
    """
    frame = trace.requests
    gaps = np.diff(frame["arrival_s"].to_numpy())
    spread = trace.duration_s > 0
    rate = trace.rate_per_s if spread else None
    peak = _peak_rate(trace) if trace.duration_s >= PEAK_WINDOW_S else None
    counts = (
        frame["category"].value_counts().sort_index().sort_values(ascending=False, kind="stable")
    )
    return {
        "name": trace.name,
        "origin": trace.origin,
        "num_requests": len(trace),
        "duration_s": trace.duration_s,
        "request_rate_per_s": rate,
        "total_prompt_tokens": int(frame["prompt_tokens"].sum()),
        "total_output_tokens": int(frame["output_tokens"].sum()),
        "prompt_tokens": _percentiles(frame["prompt_tokens"]),
        "output_tokens": _percentiles(frame["output_tokens"]),
        "interarrival_cv": float(gaps.std() / gaps.mean()) if spread else None,
        "peak_rate_per_s": peak,
        "peak_to_mean": peak / rate if peak is not None and rate is not None else None,
        "categories": {str(category): int(count) for category, count in counts.items()},
    }


def _percentiles(lengths: pd.Series[int]) -> dict[str, float]:
    values = lengths.to_numpy()
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return {
        "mean": float(values.mean()),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": int(values.max()),
    }


def _peak_rate(trace: Trace) -> float:
    """Slide a window over the arrivals: the fullest one starts at an arrival."""
    times = trace.arrival_ns
    ends = np.searchsorted(times, times + int(PEAK_WINDOW_S * 1e9), side="left")
    return float((ends - np.arange(len(times))).max() / PEAK_WINDOW_S)
