"""How fast the simulator is on this machine: one row per workload, printed as a table.

Workload W4 of the field: 10,000 requests of 512 prompt and 256 output tokens, closed loop of 64,
one core, request records on, kernels compiled beforehand.
"""

from __future__ import annotations

import platform
import time
from importlib.metadata import version

from dspark_sim.config import Scenario
from dspark_sim.simulator import simulate

POLICIES = ("none", "fixed:3", "dspark", "dspark-async", "vllm")
PROFILES = ("dsv4-flash-b300-tp4", "llama3.1-8b-h100")


def main() -> None:
    """Print the table."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("dspark-sim", "numba", "numpy"))
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print(packages)
    print(f"{'profile':<22}{'policy':<14}{'wall s':>8}{'steps':>9}{'us/step':>9}{'M tok/s':>9}")
    simulate(_scenario(PROFILES[0], "vllm", 100))
    for profile in PROFILES:
        for policy in POLICIES:
            start = time.perf_counter()
            result = simulate(_scenario(profile, policy, 10_000))
            wall = time.perf_counter() - start
            steps = len(result.steps)
            tokens = result.summary["total_output_tokens"]
            print(
                f"{profile:<22}{policy:<14}{wall:>8.2f}{steps:>9,}{wall / steps * 1e6:>9.1f}"
                f"{tokens / wall / 1e6:>9.2f}"
            )


def _scenario(profile: str, policy: str, requests: int) -> Scenario:
    return Scenario(
        trace="synth:fixed,in=512,out=256",
        profile=profile,
        policy=policy,
        concurrency=64,
        requests=requests,
    )


if __name__ == "__main__":
    main()
