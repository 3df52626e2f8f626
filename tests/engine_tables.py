"""Engines' own lookups, written plainly, and random small profiles to look up in them."""

import bisect

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from test_throughput_profile import profile

MAX_SEQS = 12


def sglang_flat(table, batch_tokens):
    """Return a step in ms by the floor probe: bisect_right - 1, clamped."""
    probes = table["sample_batch_tokens"]
    index = max(0, min(bisect.bisect_right(probes, batch_tokens) - 1, len(probes) - 1))
    return 1000.0 / table["sample_steps_per_sec"][index]


def clamped(xs, ys, x):
    """Interpolate between probes, held at both ends."""
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1]
    high = bisect.bisect_right(xs, x)
    share = (x - xs[high - 1]) / (xs[high] - xs[high - 1])
    return ys[high - 1] + share * (ys[high] - ys[high - 1])


def sglang_additive(table, num_requests, batch_tokens):
    """Return a step in ms: bias + α(R) + θ(M)."""
    alpha = clamped(table["bs_probes"], table["alpha_seconds"], num_requests)
    theta = clamped(table["m_probes"], table["theta_seconds"], batch_tokens)
    return 1000.0 * (table["bias_seconds"] + alpha + theta)


def trt(table, num_requests, batch_tokens):
    """Return a step in ms as TensorRT-LLM's legacy planner does."""
    alpha = 0.0
    if table.get("batch_sizes"):
        alpha = np.interp(num_requests, table["batch_sizes"], table["batch_overhead_ms"])
    theta = np.interp(batch_tokens, table["token_counts"], table["step_time_ms"])
    return table.get("fixed_overhead_ms", 0.0) + alpha + theta


def trt_cells(table):
    """Yield every measured cell (G, V, ms) of an exact table; V = 0 as the full block."""
    block = table["engine_fingerprint"]["max_draft_len"]
    for graph, cells in table["cost_tables"].items():
        for tokens, ms in zip(cells["token_counts"], cells["step_time_ms"], strict=True):
            yield int(graph), tokens or int(graph) * (block + 1), ms


def rising(draw, most, least=1, including=None):
    """Draw a few rising whole numbers."""
    sizes = set(draw(st.lists(st.integers(least, most), min_size=1, max_size=7)))
    return sorted(sizes | ({including} if including else set()))


@st.composite
def profiles(draw, drafters=("block", "none", "inside"), lookups=("captured", "linear", "floor")):
    """Draw a small profile whose tables reach MAX_SEQS requests."""
    ms = st.floats(0.25, 40.0)
    sizes = rising(draw, 60, including=MAX_SEQS * 4)
    lookup = draw(st.sampled_from(lookups))
    kind = draw(st.sampled_from(drafters))
    held = rising(draw, MAX_SEQS, including=MAX_SEQS)
    small = st.floats(0.0, 3.0)
    draft = pd.DataFrame(
        {"num_requests": held, "draft_len": 3, "ms": draw(st.tuples(*[small] * len(held)))}
    )
    alpha = pd.DataFrame({"num_requests": held, "ms": draw(st.tuples(*[small] * len(held)))})
    limit = draw(st.sampled_from([None, *sizes])) if lookup == "captured" else None
    return profile(
        lookup=lookup,
        capture_limit=limit,
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=sizes[-1],
        drafter="none" if kind == "none" else "block",
        draft_in_verify=kind == "inside",
        draft=draft if kind == "block" else None,
        requests=draw(st.sampled_from([None, alpha])),
        overhead_ms=draw(st.sampled_from([0.0, 0.5])),
        verify=pd.DataFrame({"batch_tokens": sizes, "ms": draw(st.tuples(*[ms] * len(sizes)))}),
    )
