"""Where `forecast` wins and loses: against the best of the published rules, on the same luck.

python benchmarks/forecast.py [--seeds 3] [--case NAME] [--profile NAME]

Each row is a profile, a case and a concurrency: the published lossless rule with the highest mean
output per GPU, and by how much `forecast` differs from it, paired by seed, with a 95 % interval.
The rival is chosen after the fact, in favour of the published rules.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from scipy import stats

from dspark_sim.config import Scenario
from dspark_sim.simulator import simulate

PROFILES = ("dsv4-flash-b300-tp4", "llama3.1-8b-h100")
LOADS = {1: 50, 16: 200, 64: 400, 256: 800}
PUBLISHED = (
    "none", "fixed:3", "fixed:5", "fixed:7", "threshold:0.5,on=survival", "dspark-async", "vllm",
    "trt:lag=1", "dcut:lag=1", "tetris:3", "knee",
)  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "chat": {"acceptance": "chat-dspark"},
    "code": {"acceptance": "code-dspark"},
    "math": {"acceptance": "math-dspark"},
    "sure of itself": {"acceptance": "chat-dspark", "belief": {"confidence_bias": 1.5}},
    "weak drafter": {"acceptance": "geometric:1.4"},
    "short outputs": {"acceptance": "chat-dspark", "trace": "synth:chat,out=20"},
}
ROW = "{:<20} {:<15} {:>4}  {:<26} {:>9} {:>9}  {:>7} ± {:.2f}"


def output_rates(policy: str, seeds: int, settings: dict[str, Any]) -> np.ndarray:
    """Return output tokens per second and GPU, one for each seed."""
    return np.array(
        [
            simulate(Scenario(policy=policy, seed=seed, **settings)).summary["tok_s_gpu"]
            for seed in range(seeds)
        ]
    )


def main() -> None:
    """Print the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--profile", action="append")
    chosen = parser.parse_args()
    print("profile              case              c  best published rule         tok/s/GPU")
    print(f"{'forecast':>87}  difference, %")
    for profile in chosen.profile or PROFILES:
        for name in chosen.case or CASES:
            for concurrency, requests in LOADS.items():
                settings = CASES[name] | {
                    "profile": profile,
                    "concurrency": concurrency,
                    "requests": requests,
                    "prefill": {"mode": "none"},
                    "record": "requests",
                }
                rates = {p: output_rates(p, chosen.seeds, settings) for p in PUBLISHED}
                best = max(rates, key=lambda p: rates[p].mean())
                own = output_rates("forecast", chosen.seeds, settings)
                gains = 100.0 * (own / rates[best] - 1.0)
                width = stats.t.ppf(0.975, max(chosen.seeds - 1, 1)) * stats.sem(gains)
                row = (profile, name, concurrency, best, f"{rates[best].mean():.1f}")
                print(
                    ROW.format(*row, f"{own.mean():.1f}", f"{gains.mean():+.2f}", width), flush=True
                )


if __name__ == "__main__":
    main()
