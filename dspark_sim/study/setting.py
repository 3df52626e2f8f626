"""The best values of a study as settings of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dspark_sim.core import parse_spec
from dspark_sim.policies import load_policy, policy_draft_len
from dspark_sim.throughput import speculative_config

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE = "all loads"


def exported(best: Mapping[str, str], gamma: int, profile: str) -> dict[str, Any]:
    """Return what to give vLLM and SGLang so that they run a study's best policies.

    Parameters
    ----------
    best
        By load ("64", or "all loads") the policy, as `fixed:3`.
    gamma
        Draft length of policies that do not set their own.
    profile
        Whose cost table SGLang is given.

    Returns
    -------
    dict
        `vllm`: keys of `--speculative-config`. `sglang`: `flags`, `environment` and `schedule`.
        `others`: a setting of another engine. `note`: what no engine of these has. A part that
        does not exist is left out.
    """
    names = {parse_spec(spec)[0] for spec in best.values()}
    family = names.pop() if len(names) == 1 else ""
    lengths = {
        load: policy_draft_len(load_policy(spec, gamma), gamma) for load, spec in best.items()
    }
    if family in ("fixed", "none"):
        return _lengths(best, lengths)
    if family in ("vllm", "dspark-async", "dspark", "sglang"):
        return _scheduled(best, max(lengths.values()), profile)
    if family == "threshold":
        found: dict[str, Any] = {"note": "vLLM and SGLang have no static confidence threshold"}
        if len(set(best.values())) == 1:
            tau = parse_spec(next(iter(best.values())))[1][0]
            found["others"] = {"antirez/ds4": f"--dspark-confidence {tau}"}
        return found
    return {"note": "no setting of vLLM or SGLang is known for this policy"}


def _lengths(best: Mapping[str, str], drafted: Mapping[str, int]) -> dict[str, Any]:
    """Return a fixed length, or vLLM's schedule over batch sizes; SGLang has a length alone."""
    found = {load: int(parse_spec(spec)[1][0]) if ":" in spec else 0 for load, spec in best.items()}
    if any(found[load] != drafted[load] for load in best):
        return {"note": "no engine verifies fewer tokens of every request than it drafts"}
    if set(found) == {WHOLE}:
        length = found[WHOLE]
        return {
            "vllm": {"num_speculative_tokens": length},
            "sglang": {"flags": [f"--speculative-num-draft-tokens {length + 1}"]},
        }
    try:
        return {"vllm": speculative_config({int(load): k for load, k in found.items()})}
    except ValueError:  # loads are rates
        return {"note": "vLLM's schedule is by batch size: tune over concurrencies"}


def _scheduled(best: Mapping[str, str], gamma: int, profile: str) -> dict[str, Any]:
    """Return what turns confidence scheduling on; SGLang's has a lag, a fill and a least gain."""
    keywords = [parse_spec(spec)[2] for spec in best.values()]
    lags, gains = ({keys.get(name) for keys in keywords} - {None} for name in ("lag", "guard"))
    sglang: dict[str, Any] = {
        "flags": ["--speculative-dspark-sps-table-path sps.json"],
        "environment": {"SGLANG_RAGGED_VERIFY_MODE": "compact"},
        "table": f"dspark-sim profile export {profile} --format sglang-additive --out sps.json",
    }
    if len(lags) == 1:
        sglang["environment"]["SGLANG_DSPARK_CONFIDENCE_RELAY_LAG_STEPS"] = str(lags.pop())
    if all("fill" in keys for keys in keywords):
        sglang["flags"].append("--speculative-dspark-align-verify-tokens-to-graph-tier")
    if len(gains) == 1:  # a field of its scheduler's configuration (pull request 35413), no flag
        sglang["schedule"] = {"min_predicted_gain": float(str(gains.pop()))}
    return {
        "vllm": {"num_speculative_tokens": gamma, "enable_adaptive_verification": True},
        "sglang": sglang,
    }
