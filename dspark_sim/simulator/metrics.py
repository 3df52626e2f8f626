"""Every metric, by formula, with its unit in its name.

Two scopes. vLLM's benchmark keys (`output_throughput`, `mean_ttft_ms`, …) cover the whole run,
from the first arrival to the last token. All other names cover the *measured window*: in a closed
loop of c from the c-th completion to the last issue, in an open loop from the first arrival after
the warm-up to the last before the cool-down (without either: the whole run). Rates count what
happened in the window, latencies the requests that finished in it (open loop: arrived in it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sim.core import NS_PER_MS, NS_PER_S
from dspark_sim.simulator import state as s

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Statistics = list[tuple[str, float]]  # in ms, by name: mean, std, p50, ...

PERCENTILES = (50, 90, 95, 99)
PARTS = {
    "pass": s.C_PASS_NS,
    "committed": s.C_COMMITTED_NS,
    "rejected": s.C_REJECTED_NS,
    "padding": s.C_PADDING_NS,
    "draft": s.C_DRAFT_NS,
    "prefill": s.C_PREFILL_NS,
    "context": s.C_CONTEXT_NS,
    "overhead": s.C_OVERHEAD_NS,
}
"""What the time of steps is spent on, by counter; with `idle` they make up the whole."""


def request_latencies(frame: pd.DataFrame) -> pd.DataFrame:
    """Add ttft_ms, tpot_ms and e2el_ms to a table of requests with times in seconds.

    ttft = first token − arrival; e2el = last token − arrival;
    tpot = (e2el − ttft) / (output tokens − 1), NaN for a single token.
    """
    later = frame["output_tokens"] - 1
    frame["ttft_ms"] = (frame["first_token_s"] - frame["arrival_s"]) * 1e3
    frame["e2el_ms"] = (frame["finish_s"] - frame["arrival_s"]) * 1e3
    frame["tpot_ms"] = ((frame["e2el_ms"] - frame["ttft_ms"]) / later.where(later > 0)).astype(
        float
    )
    return frame


def window_metrics(
    counts: NDArray[np.int64],
    requests: pd.DataFrame,
    latencies: Mapping[str, Statistics],
    num_gpus: int,
    replicas: int = 1,
) -> dict[str, Any]:
    """Return the metrics of the measured window.

    Parameters
    ----------
    counts : (counters,)
        Growth of the engine's counters over the window.
    requests
        The requests whose latencies count.
    latencies
        Statistics of the window, see `latency_statistics`.
    num_gpus, replicas
        GPUs of one replica, and replicas whose counters are summed in `counts`.

    Notes
    -----
    With R the requests that decode in a step and ℓ what each verifies, all sums over steps:
    acceptance_length = Σ(min(accepted, ℓ) + 1) / ΣR (bonus included, not cut by a request's end);
    verify_budget = Σ(1 + ℓ) / ΣR (anchor included, as in arXiv 2607.05147, Fig. 8);
    draft_budget = Σℓ / ΣR; acceptance_rate = Σ accepted / Σℓ;
    wasted_fraction = Σ(ℓ − accepted) / Σ(1 + ℓ), verified and rejected per decode token.
    """
    duration = counts[s.C_TIME] / NS_PER_S
    rows = counts[s.C_REQUEST_STEPS]
    wasted = counts[s.C_VERIFIED] - counts[s.C_ACCEPTED]
    tokens_s = _ratio(counts[s.C_TOKENS], duration)
    tpot = requests["tpot_ms"].to_numpy()
    return {
        "window_s": duration,
        "requests_measured": len(requests),
        "tok_s_gpu": tokens_s / (num_gpus * replicas),
        "tok_s_user": _ratio(1e3, _percentile(tpot, 50)),
        "tok_s_user_mean": _ratio(1e3, _mean(tpot)),
        "output_tok_s": tokens_s,
        "request_s": _ratio(counts[s.C_COMPLETED], duration),
        "acceptance_length": _ratio(counts[s.C_COMMITTED], rows),
        "acceptance_rate": _ratio(counts[s.C_ACCEPTED], counts[s.C_VERIFIED]),
        "verify_budget": _ratio(rows + counts[s.C_VERIFIED], rows),
        "draft_budget": _ratio(counts[s.C_VERIFIED], rows),
        "drafted_per_step": _ratio(counts[s.C_DRAFTED], rows),
        "wasted_tokens": int(wasted),
        "wasted_fraction": _ratio(wasted, rows + counts[s.C_VERIFIED]),
        "batch_tokens": _ratio(counts[s.C_BATCH_TOKENS], counts[s.C_STEPS]),
        "num_requests": _ratio(rows, counts[s.C_DECODE_STEPS]),
        "steps": int(counts[s.C_STEPS]),
        "step_ms": _ratio(counts[s.C_BUSY_NS] / NS_PER_MS, counts[s.C_STEPS]),
        "eager_step_fraction": _ratio(counts[s.C_EAGER], counts[s.C_STEPS]),
        "clamped_step_fraction": _ratio(counts[s.C_CLAMPED], counts[s.C_STEPS]),
        "extended_step_fraction": _ratio(counts[s.C_EXTENDED], counts[s.C_STEPS]),
        "prefill_token_fraction": _ratio(counts[s.C_PREFILL_TOKENS], counts[s.C_BATCH_TOKENS]),
        "utilisation": _ratio(counts[s.C_BUSY_NS], counts[s.C_TIME] * replicas),
        "mean_running": _ratio(counts[s.C_RUNNING_NS], counts[s.C_TIME]),
        "kv_wait_fraction": _ratio(counts[s.C_KV_WAITS], counts[s.C_STEPS]),
        "slot_wait_fraction": _ratio(counts[s.C_SLOT_WAITS], counts[s.C_STEPS]),
        "mean_kv_blocks": _ratio(counts[s.C_KV_BLOCK_NS], counts[s.C_BUSY_NS]),
        "preemptions": int(counts[s.C_PREEMPTIONS]),
        **_times_per_token(counts, replicas),
        **{f"{name}_{key}_ms": value for name, rows in latencies.items() for key, value in rows},
    }


def _times_per_token(counts: NDArray[np.int64], replicas: int) -> dict[str, float]:
    """Return µs of engine time per token given out, and what it was spent on: `us_token_draft`."""
    tokens, time_ns = counts[s.C_TOKENS], counts[s.C_TIME] * replicas
    found = {"us_token": _ratio(time_ns / 1e3, tokens)}
    found |= {f"us_token_{part}": _ratio(counts[row] / 1e3, tokens) for part, row in PARTS.items()}
    return found | {"us_token_idle": _ratio((time_ns - counts[s.C_BUSY_NS]) / 1e3, tokens)}


def latency_statistics(requests: pd.DataFrame, gaps: NDArray[np.int64]) -> dict[str, Statistics]:
    """Return mean, spread and percentiles in ms of ttft, tpot, icl (per chunk of output) and e2el.

    `gaps` (n, 2) are inter-chunk gaps in ns with their numbers of chunks.
    """
    return {
        name: _gap_statistics(gaps) if name == "icl" else _statistics(requests[f"{name}_ms"])
        for name in ("ttft", "tpot", "icl", "e2el")
    }


def run_metrics(
    counts: NDArray[np.int64],
    requests: pd.DataFrame,
    latencies: Mapping[str, Statistics],
    goodput: Mapping[str, float],
) -> dict[str, Any]:
    """Return the whole run under the keys of `vllm bench serve`; `itl` is per chunk of output."""
    start = float(requests["arrival_s"].min())
    duration = float(requests["finish_s"].max()) - start
    outputs, inputs = int(requests["output_tokens"].sum()), int(requests["prompt_tokens"].sum())
    met = np.ones(len(requests), dtype=bool)
    for metric, limit in goodput.items():
        met &= (requests[f"{metric}_ms"].fillna(0.0) <= limit).to_numpy()
    waited = float((requests["admitted_s"] - requests["arrival_s"]).sum())
    present = float((requests["finish_s"] - requests["arrival_s"]).sum())
    summary: dict[str, Any] = {
        "duration": duration,
        "completed": len(requests),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": _ratio(len(requests), duration),
        "output_throughput": _ratio(outputs, duration),
        "total_token_throughput": _ratio(inputs + outputs, duration),
        "request_goodput": _ratio(int(met.sum()), duration) if goodput else None,
        "mean_queue_requests": _ratio(waited, duration),
        "mean_system_requests": _ratio(present, duration),
        "spec_decode_num_drafts": int(counts[s.C_DRAFTS]),
        "spec_decode_draft_tokens": int(counts[s.C_VERIFIED]),
        "spec_decode_accepted_tokens": int(counts[s.C_ACCEPTED]),
    }
    for name in ("ttft", "tpot", "e2el", "itl"):
        for key, value in latencies["icl" if name == "itl" else name]:
            label = "median" if key == "p50" else key
            summary[f"{label}_{name}_ms"] = value
    return summary


def _statistics(column: pd.Series[float]) -> Statistics:
    values = column.to_numpy(np.float64)
    kept: Floats = values[~np.isnan(values)].astype(np.float64, copy=False)
    spread = float(np.std(kept)) if len(kept) else float("nan")
    found = np.percentile(kept, PERCENTILES) if len(kept) else np.full(len(PERCENTILES), np.nan)
    percentiles = [(f"p{p}", float(v)) for p, v in zip(PERCENTILES, found, strict=True)]
    return [("mean", _mean(kept)), ("std", spread), *percentiles]


def _gap_statistics(gaps: NDArray[np.int64]) -> Statistics:
    """Return statistics over chunks, each row of `gaps` standing for `gaps[:, 1]` of them."""
    order = np.argsort(gaps[:, 0], kind="stable")
    ms, count = gaps[order, 0] / NS_PER_MS, gaps[order, 1]
    total = count.sum()
    if total == 0:
        return [(key, float("nan")) for key in ("mean", "std", *(f"p{p}" for p in PERCENTILES))]
    mean = float((ms * count).sum() / total)
    spread = float(np.sqrt((count * (ms - mean) ** 2).sum() / total))
    below = np.cumsum(count)
    rank = (total - 1) * np.array(PERCENTILES) / 100  # numpy's default, as for the latencies
    low = ms[np.searchsorted(below, np.floor(rank), side="right")]
    high = ms[np.searchsorted(below, np.ceil(rank), side="right")]
    values = low + (high - low) * (rank - np.floor(rank))
    percentiles = [(f"p{p}", float(v)) for p, v in zip(PERCENTILES, values, strict=True)]
    return [("mean", mean), ("std", spread), *percentiles]


def _mean(values: Floats) -> float:
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if len(kept) else float("nan")


def _percentile(values: Floats, p: float) -> float:
    kept = values[~np.isnan(values)]
    return float(np.percentile(kept, p)) if len(kept) else float("nan")


def _ratio(top: float, bottom: float) -> float:
    return float(top / bottom) if bottom else float("nan")
