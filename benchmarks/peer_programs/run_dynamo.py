"""Dynamo's replay (ai-dynamo, ai-dynamo-runtime) on one workload, under its own Python.

    python run_dynamo.py LOAD REQUESTS DRAFT_LEN

It tells no count of steps. Without drafts the simulated time over its mean time between tokens
comes near; with drafts nothing does, and 0 is returned.
"""

import json
import sys
import time

from dynamo.replay.api import run_synthetic_trace_replay

LOADS = {"W2": {"request_rate": 10}, "W3": {"request_rate": 40}, "W4": {"replay_concurrency": 64}}
RATES = "0.8,0.7,0.6"


def replay(load: str, requests: int, draft_len: int) -> dict[str, float]:
    """Return CPU seconds and simulated quantities of one run."""
    engine: dict[str, object] = {"backend": "vllm"}
    if draft_len:
        engine |= {"aic_nextn": draft_len, "aic_nextn_accept_rates": RATES, "aic_mtp_seed": 1}
    start = time.process_time()
    report = run_synthetic_trace_replay(
        512, 256, requests, extra_engine_args={"engine": engine}, **LOADS[load]
    )
    seconds = time.process_time() - start
    summary = report.summary
    return {
        "cpu_s": seconds,
        "tokens": summary["total_output_tokens"],
        "steps": 0 if draft_len else summary["duration_ms"] / summary["mean_itl_ms"],
    }


if __name__ == "__main__":
    arguments = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    replay(arguments[0], 100, arguments[2])
    runs = [replay(*arguments) for _ in range(3)]
    print(json.dumps(min(runs, key=lambda run: run["cpu_s"])))
