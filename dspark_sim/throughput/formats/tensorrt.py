"""TensorRT-LLM's additive cost table (`dspark_planner.SpsCostTable`), legacy JSON in ms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.throughput.formats.knots import from_one, linear_knots
from dspark_sim.throughput.formats.sglang import additive_profile
from dspark_sim.throughput.formats.source import JsonObject
from dspark_sim.throughput.formats.terms import step_terms

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from dspark_sim.throughput.formats.build import ImportOptions
    from dspark_sim.throughput.profile import EngineProfile

MINIMUM_PREDICTED_GAIN = 0.01
"""What TensorRT-LLM assumes where a table does not say."""


def read_legacy(path: Path, text: str, options: ImportOptions) -> EngineProfile:
    """Read `token_counts`, `step_time_ms` (θ) and, if given, the fixed and per-batch overheads.

    T = fixed_overhead_ms + batch_overhead_ms(R) + step_time_ms(M): linear, clamped (`np.interp`).
    """
    table = JsonObject.parse(path.name, text)
    sizes, theta = from_one(*table.costs("step_time_ms", "token_counts", above=True))
    bias = table.number("fixed_overhead_ms", 0.0)
    alpha = None
    if table.values.get("batch_sizes") or table.values.get("batch_overhead_ms"):
        alpha = from_one(*table.costs("batch_overhead_ms", "batch_sizes"))
    gain = table.number("minimum_predicted_gain", MINIMUM_PREDICTED_GAIN)
    return additive_profile(
        path, options, "TensorRT-LLM cost table", alpha, (sizes, theta),
        {"overhead_ms": bias},
        {"minimum_predicted_gain": f"{gain:g}: the planner's guard, not part of a step's cost"},
    )  # fmt: skip


def legacy_table(profile: EngineProfile, draft_len: int | None, context: int) -> dict[str, Any]:
    """Return a profile as a legacy table, exact at every whole number of requests and tokens.

    A staircase becomes two points per step, as TensorRT-LLM asks for.
    """
    terms = step_terms(profile, draft_len, context)
    requests, alpha = linear_knots(terms.requests, terms.alpha_ms)
    sizes, theta = linear_knots(terms.tokens, terms.theta_ms)
    return {
        "token_counts": sizes.tolist(),
        "step_time_ms": theta.tolist(),
        "fixed_overhead_ms": terms.bias_ms,
        "batch_sizes": requests.tolist(),
        "batch_overhead_ms": alpha.tolist(),
        "minimum_predicted_gain": MINIMUM_PREDICTED_GAIN,
        "_meta": {
            "encoding": "decomposed",
            "token_unit": "num_requests * (verify_len + 1): the bonus token is included",
            "profile": profile.name,
            "source": profile.provenance["source"],
        },
    }
