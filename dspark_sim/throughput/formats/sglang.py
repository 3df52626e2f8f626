"""SGLang's SPS tables (`dspark_sps.py`): flat with a floor probe, and additive, interpolated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from dspark_sim.core import UserError
from dspark_sim.throughput.formats.build import Tables, build_profile
from dspark_sim.throughput.formats.knots import floor_knots, from_one, held, linear_knots
from dspark_sim.throughput.formats.source import JsonObject
from dspark_sim.throughput.formats.terms import draft_len_of, step_terms

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from dspark_sim.throughput.formats.build import ImportOptions
    from dspark_sim.throughput.formats.terms import Floats, Sizes
    from dspark_sim.throughput.profile import EngineProfile

    Points = tuple[Sizes, Floats]

WHOLE_STEP = {"drafter": "block", "draft_in_verify": True}
"""What a table of whole speculative steps says about the drafter."""


def read_flat(path: Path, text: str, options: ImportOptions) -> EngineProfile:
    """Read `sample_batch_tokens`, `sample_steps_per_sec`, `max_batch_tokens`.

    Lookup is the probe at or below, the first probe below that (`floor_probe_index`), and the last
    one up to max_batch_tokens.
    """
    table = JsonObject.parse(path.name, text)
    sizes, rate = table.costs("sample_steps_per_sec", "sample_batch_tokens", above=True)
    if sizes[0] < 1:
        raise UserError(f"{table.where('sample_batch_tokens')}[0] must be at least 1, got 0")
    last = table.whole("max_batch_tokens", least=1)
    if last < sizes[-1]:
        raise UserError(
            f"{table.where('max_batch_tokens')} must be at least the largest probe, {sizes[-1]}, "
            f"got {last}"
        )
    sizes, ms = held(sizes, 1000.0 / rate, options.count("max_num_batched_tokens", last))
    return build_profile(
        path,
        options,
        "SGLang SPS table (flat)",
        Tables(verify=pd.DataFrame({"batch_tokens": sizes, "ms": ms})),
        {
            **WHOLE_STEP,
            "lookup": "floor",
            "max_num_batched_tokens": last,
        },
        {
            "method": "Step time = 1 / SPS at each probe; the probe at or below holds, the first "
            "also below itself, the last up to max_batch_tokens. A batch was reached with as few "
            "requests as possible, so many short requests cost more than this says."
        },
    )


def read_additive(path: Path, text: str, options: ImportOptions) -> EngineProfile:
    """Read `bias_seconds`, `bs_probes`, `alpha_seconds`, `m_probes`, `theta_seconds`.

    T = bias + α(R) + θ(M), both interpolated and held beyond their probes. Only sums count: the
    smallest α goes into θ.
    """
    table = JsonObject.parse(path.name, text)
    bias = table.number("bias_seconds")
    requests, alpha = from_one(*table.costs("alpha_seconds", "bs_probes", least=None))
    sizes, theta = from_one(*table.costs("theta_seconds", "m_probes", least=None))
    theta, alpha = theta + bias + alpha.min(), alpha - alpha.min()
    if theta.min() <= 0:
        raise UserError(
            f"{table.where('theta_seconds')} leaves a step of {theta.min():g} s with the bias and "
            "the smallest alpha, which must be above 0"
        )
    return additive_profile(
        path, options, "SGLang SPS table (additive)",
        (requests, 1000.0 * alpha), (sizes, 1000.0 * theta), {},
    )  # fmt: skip


def additive_profile(
    path: Path, options: ImportOptions, origin: str, alpha: Points | None, theta: Points,
    told: dict[str, Any], notes: dict[str, str] | None = None,
) -> EngineProfile:  # fmt: skip
    """Make a profile of α(R) and θ(M) that are interpolated and held beyond their ends."""
    tokens = options.count("max_num_batched_tokens", int(theta[0][-1]))
    sizes, theta_ms = held(*theta, tokens)
    requests = None
    if alpha is not None:
        seqs = options.count("max_num_seqs", max(int(alpha[0][-1]), 1))
        told = {**told, "max_num_seqs": seqs}
        if alpha[1].any():
            at, alpha_ms = held(*alpha, seqs)
            requests = pd.DataFrame({"num_requests": at, "ms": alpha_ms})
    return build_profile(
        path,
        options,
        origin,
        Tables(
            verify=pd.DataFrame({"batch_tokens": sizes, "ms": theta_ms}),
            requests=requests,
        ),
        {
            **WHOLE_STEP,
            "lookup": "linear",
            "max_num_batched_tokens": tokens,
            **told,
        },
        {
            "method": "T = bias + alpha(R) + theta(M) of whole speculative steps, drafting "
            "included; both terms are interpolated between probes and held at their ends.",
            **(notes or {}),
        },
    )


def flat_table(profile: EngineProfile, draft_len: int | None, context: int) -> dict[str, Any]:
    """Return a profile as a flat table: SPS(B) with as few requests as B tokens need.

    So does SGLang's own profiler: R = ceil(B / (draft length + 1)). A staircase is kept exactly;
    along a line a probe is set every 0.5 %.
    """
    terms = step_terms(profile, draft_len, context)
    window = draft_len_of(profile, draft_len) + 1
    ms = terms.step_ms(-(-terms.tokens // window), terms.tokens)
    sizes, ms = floor_knots(terms.tokens, ms, terms.stepped)
    return {
        "sample_batch_tokens": sizes.tolist(),
        "sample_steps_per_sec": (1000.0 / ms).tolist(),
        "max_batch_tokens": int(terms.tokens[-1]),
    }


def additive_table(profile: EngineProfile, draft_len: int | None, context: int) -> dict[str, Any]:
    """Return a profile as an additive table, exact at every whole number of requests and tokens."""
    terms = step_terms(profile, draft_len, context)
    requests, alpha = linear_knots(terms.requests, terms.alpha_ms)
    sizes, theta = linear_knots(terms.tokens, terms.theta_ms)
    bias = terms.bias_ms + alpha.min() + theta.min()
    return {
        "bias_seconds": bias / 1000.0,
        "bs_probes": requests.tolist(),
        "alpha_seconds": ((alpha - alpha.min()) / 1000.0).tolist(),
        "m_probes": sizes.tolist(),
        "theta_seconds": ((theta - theta.min()) / 1000.0).tolist(),
    }
