"""The scenarios that are timed."""

from __future__ import annotations

from functools import cache
from typing import Any

from dspark_sim.config import Scenario
from dspark_sim.simulator import simulate

PROFILE = "llama3.1-8b-h100"
LOADS: dict[str, dict[str, Any]] = {
    "W2": {"request_rate": 10.0},
    "W3": {"request_rate": 40.0},
    "W4": {"concurrency": 64},
}
"""10,000 requests of 512 prompt and 256 output tokens: two open loops and a closed one."""
CHAT = "synth:chat,out=212"
"""Chat-like lengths with 300 output tokens in the mean."""


def serving(load: str, policy: str, requests: int, **changes: Any) -> Scenario:
    """Return a scenario of `LOADS`, with request records."""
    keys = {"trace": "synth:fixed,in=512,out=256", "record": "requests", **LOADS[load], **changes}
    return Scenario(profile=PROFILE, policy=policy, requests=requests, **keys)


def chat(policy: str, requests: int, **changes: Any) -> Scenario:
    """Return chat-like requests at 80 % of what one replica can serve with dspark-async."""
    keys = {"record": "requests", **(changes or {"request_rate": _rate()})}
    return Scenario(profile=PROFILE, trace=CHAT, policy=policy, requests=requests, **keys)


@cache
def _rate() -> float:
    full = chat("dspark-async", 3_000, concurrency=256)
    return round(0.8 * float(simulate(full).summary["request_s"]), 2)
