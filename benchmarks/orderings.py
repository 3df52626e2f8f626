"""What is reported of engines, against the simulator: who gains on whom, and by how much.

python -m benchmarks.orderings [--seeds 5]

Each row compares two policies on the same requests and luck, decoding alone, with a 95 % interval
of the paired difference in output per GPU. Reported are orderings; the sizes depend on the engine.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from benchmarks.league import DENSE, REQUESTS, SMALL_DENSE, SMALL_MOE
from dspark_sim import Scenario
from dspark_sim.study import paired_difference, sweep


class Ordering(NamedTuple):
    """A report, the scenario it is about, and the two policies that are compared."""

    report: str
    profile: str
    load: int
    policy: str
    baseline: str
    keys: dict[str, Any]


ALL = "fixed:7"
FRESH = "fresh requests count as sure: loss against lag 0, outputs of {}"
ORDERINGS = (
    Ordering("a flat table verifies everything", DENSE, 64, "sglang", ALL,
             {"belief": {"table": "flat"}}),
    Ordering("MoE, wrong (dense) table: trimming loses", SMALL_MOE, 48, "dspark-async", ALL,
             {"belief": {"profile": SMALL_DENSE}}),
    Ordering("MoE, its own table", SMALL_MOE, 48, "dspark-async", ALL, {}),
    Ordering("dense: trimming wins", DENSE, 48, "dspark-async", ALL, {}),
    Ordering("dense: trimming wins", DENSE, 64, "dspark-async", ALL, {}),
    Ordering("dense, code: trimming wins", DENSE, 64, "dspark-async", ALL,
             {"acceptance": "code-dspark"}),
    Ordering("dense on H20: trimming wins", SMALL_DENSE, 48, "dspark-async", ALL, {}),
    Ordering("dense on H20, code: trimming wins", SMALL_DENSE, 48, "dspark-async", ALL,
             {"acceptance": "code-dspark"}),
    *(
        Ordering(FRESH.format(tokens), SMALL_DENSE, 64, "dspark-async", "dspark-async:lag=0",
                 {"trace": f"synth:fixed,in=64,out={tokens}", "requests": 3000 // tokens + 400})
        for tokens in (8, 32, 256)
    ),
)  # fmt: skip


def main() -> None:
    """Print the table row by row."""
    parser = argparse.ArgumentParser("python -m benchmarks.orderings")
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print("| reported | profile | c | compared | verify budget | difference, % |")
    print("|---|---|---|---|---|---|")
    for one in ORDERINGS:
        keys = {"requests": REQUESTS[one.load], "acceptance": "chat-dspark"} | one.keys
        scenario = Scenario(profile=one.profile, prefill={"mode": "none"}, record="summary", **keys)
        runs = sweep(scenario, [one.policy, one.baseline], [one.load], seeds=seeds)
        pair = paired_difference(runs, "tok_s_gpu", one.policy, one.baseline).iloc[0]
        budget = runs[runs["policy"] == one.policy]["verify_budget"].mean()
        gain = f"{pair['difference_pct']:+.1f} ± {pair['difference_pct_ci95']:.1f}"
        names = f"`{one.policy}` to `{one.baseline}`"
        print(f"| {one.report} | `{one.profile}` | {one.load} | {names} | {budget:.2f} | {gain} |")


if __name__ == "__main__":
    main()
