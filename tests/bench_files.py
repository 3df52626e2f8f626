"""Result files as `vllm bench serve --save-result` writes them, from known profiles and laws."""

import json

import numpy as np

from dspark_sim import Scenario
from dspark_sim.simulator import simulate

EVEN = "chat-dspark:request_sd=0,token_sd=0"


def simulated(profile, k, concurrency, acceptance=EVEN):
    """Return the result of one closed loop of the simulator under vLLM's keys."""
    scenario = Scenario(
        profile=profile,
        acceptance=acceptance,
        policy=f"fixed:{k}" if k else "none",
        trace="synth:fixed,in=32,out=96",
        concurrency=concurrency,
        requests=max(64, 4 * concurrency),
        prefill={"mode": "none"},
        record="requests",
    )
    summary = simulate(scenario).summary
    keys = ("duration", "completed", "output_throughput", "mean_tpot_ms", "median_tpot_ms")
    result = {"model_id": "known", "request_rate": "inf", "max_concurrency": concurrency}
    result |= {key: summary[key] for key in keys}
    if k:
        keys = ("spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens")
        result |= {key: summary[key] for key in keys}
        accepted = summary["spec_decode_accepted_tokens"] / summary["spec_decode_num_drafts"]
        result["spec_decode_acceptance_length"] = 1 + accepted
    return result


def noisy(result, rng, sd=0.03):
    """Return a result whose times and acceptance length have a relative error of 3 %."""
    changed = dict(result)
    slow = float(np.exp(sd * rng.standard_normal()))
    changed["mean_tpot_ms"] *= slow
    changed["output_throughput"] /= slow
    key = "spec_decode_acceptance_length"
    if key in changed:
        longest = 1 + round(changed["spec_decode_draft_tokens"] / changed["spec_decode_num_drafts"])
        error = float(np.exp(sd * rng.standard_normal()))
        changed[key] = min(changed[key] * error, float(longest))
    return changed


def without_length(result):
    """Return a result of an engine that does not report its acceptance length."""
    hidden = ("spec_decode_acceptance_length", "spec_decode_accepted_tokens")
    return {key: value for key, value in result.items() if key not in hidden}


def write(folder, results):
    """Write results by (k, concurrency); return the files."""
    paths = []
    for (k, concurrency), result in results.items():
        paths.append(folder / f"k{k}-c{concurrency}.json")
        paths[-1].write_text(json.dumps(result, indent=2))
    return paths
