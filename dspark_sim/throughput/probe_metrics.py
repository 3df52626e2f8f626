"""What a server's /metrics says of speculation and of its own steps (Prometheus text)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ENGINES = {
    "dspark_sim": "dspark-sim serve",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
}
_COUNTING = ("vllm", "llamacpp")
_STEPS = "dspark_sim:decode_steps_total"
_STEP_SECONDS = "dspark_sim:decode_step_seconds_total"


@dataclass(frozen=True)
class Metrics:
    """One reading of /metrics: the sum of every metric's samples over its labels.

    Attributes
    ----------
    totals : dict
        Value by name.
    by_requests : dict
        Value by (name, num_requests) of samples that carry the label `num_requests`.
    counts : dict
        Samples by name, for means of gauges.
    """

    totals: dict[str, float]
    by_requests: dict[tuple[str, int], float]
    counts: dict[str, int]

    @property
    def engine(self) -> str | None:
        """The engine whose names these are."""
        prefixes = {name.partition(":")[0] for name in self.totals}
        return next((name for prefix, name in _ENGINES.items() if prefix in prefixes), None)

    def gauge(self, name: str) -> float:
        """Mean of a gauge over its labels; NaN where it is missing."""
        return self.totals[name] / self.counts[name] if name in self.totals else math.nan


@dataclass(frozen=True)
class Speculation:
    """What a server says of its drafts in a span of time; NaN is not told.

    Attributes
    ----------
    drafts, draft_tokens, accepted_tokens : float
        Counted blocks, tokens verified and accepted.
    draft_len : float
        Draft tokens per block.
    acceptance_length : float
        Tokens per block, the bonus token included.
    """

    drafts: float = math.nan
    draft_tokens: float = math.nan
    accepted_tokens: float = math.nan
    draft_len: float = math.nan
    acceptance_length: float = math.nan


def read_metrics(text: str) -> Metrics:
    """Read Prometheus text; lines that are no finite samples are passed over."""
    totals: dict[str, float] = {}
    by_requests: dict[tuple[str, int], float] = {}
    counts: dict[str, int] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is None:
            continue
        name, labels, number = found.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        if not math.isfinite(value):
            continue
        totals[name] = totals.get(name, 0.0) + value
        counts[name] = counts.get(name, 0) + 1
        requests = dict(_LABEL.findall(labels or "")).get("num_requests", "")
        if requests.isdecimal():
            key = (name, int(requests))
            by_requests[key] = by_requests.get(key, 0.0) + value
    return Metrics(totals, by_requests, counts)


def speculation(before: Metrics, after: Metrics) -> Speculation:
    """Return what was drafted between two readings.

    vLLM and llama.cpp count drafts, their tokens and the accepted ones; the acceptance length is
    1 + accepted / drafts. SGLang tells gauges: its acceptance length includes the bonus token, its
    number of draft tokens the anchor.
    """
    for prefix in _COUNTING:
        names = [f"{prefix}:spec_decode_num_{what}_total" for what in _COUNTED]
        if names[1] in after.totals:
            drafts, tokens, accepted = (_rise(before, after, name) for name in names)
            if drafts > 0:
                return Speculation(drafts, tokens, accepted, tokens / drafts, 1 + accepted / drafts)
            return Speculation(drafts, tokens, accepted)
    length = after.gauge("sglang:spec_accept_length")
    verified, steps = (after.gauge(f"sglang:spec_num_{x}") for x in ("draft_tokens", "steps"))
    draft_len = verified - 1 if verified >= 1 else steps
    return Speculation(draft_len=draft_len, acceptance_length=length if length > 0 else math.nan)


_COUNTED = ("drafts", "draft_tokens", "accepted_tokens")


def _rise(before: Metrics, after: Metrics, name: str) -> float:
    """Return by how much a counter rose; NaN where it is missing or was reset."""
    rise = after.totals.get(name, math.nan) - before.totals.get(name, 0.0)
    return rise if rise >= 0 else math.nan


def engine_step_ms(before: Metrics, after: Metrics, num_requests: int) -> tuple[float, int]:
    """Return the mean time, in ms, and number of the engine's own steps with so many requests.

    `dspark-sim serve` tells them of steps without prompt tokens; of others they are NaN and 0.
    """
    steps, seconds = (
        after.by_requests.get((name, num_requests), 0.0)
        - before.by_requests.get((name, num_requests), 0.0)
        for name in (_STEPS, _STEP_SECONDS)
    )
    return (1e3 * seconds / steps, round(steps)) if steps > 0 and seconds > 0 else (math.nan, 0)
