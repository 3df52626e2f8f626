"""What arrives: requests with a time, a prompt length and an output length."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sim.core import NS_PER_S, UserError
from dspark_sim.trace import arrivals, rules

if TYPE_CHECKING:
    import pandas as pd

    from dspark_sim.trace.rules import IntArray


@dataclass(frozen=True, eq=False)
class Trace:
    """A list of requests in order of arrival.

    `requests` has one row per request and these columns: `request_id` (text, unique), `arrival_s`
    (seconds from the trace's zero, whole nanoseconds, never falling), `prompt_tokens`,
    `output_tokens` (at least 1) and `category` (text, "" for none). The identifiers (default
    0, 1, ...) and the category may be left out. `origin` says where the requests come from and
    what was done to them. Rows that break a rule raise UserError; every method returns a new trace.

    >>> import pandas as pd
    >>> trace = Trace(pd.DataFrame({"arrival_s": [0, 1], "prompt_tokens": 8, "output_tokens": 4}))
    >>> len(trace.scaled(2)), trace.scaled(2).requests["arrival_s"].tolist()
    (2, [0.0, 0.5])
    """

    requests: pd.DataFrame
    name: str = "trace"
    origin: str = ""

    def __post_init__(self) -> None:
        frame = rules.canonical(self.requests, f"trace '{self.name}'")
        object.__setattr__(self, "requests", frame)

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def arrival_ns(self) -> IntArray:
        """Arrival times in whole nanoseconds, shape (requests,)."""
        return rules.to_ns(self.requests["arrival_s"].to_numpy(), NS_PER_S)

    @property
    def duration_s(self) -> float:
        """Seconds from the first arrival to the last."""
        times = self.requests["arrival_s"].to_numpy()
        return float(times[-1] - times[0])

    @property
    def rate_per_s(self) -> float:
        """Requests per second: gaps between arrivals over the duration; NaN for one request."""
        if len(self) == 1:
            return math.nan
        return (len(self) - 1) / self.duration_s if self.duration_s > 0 else math.inf

    def head(self, n: int) -> Trace:
        """Keep the first `n` requests; asking for more than there are is an error."""
        if not 1 <= n <= len(self):
            raise UserError(f"trace '{self.name}' has {len(self)} requests, {n} were asked for")
        return self if n == len(self) else self._derived(self.requests[:n], f"first {n} requests")

    def between(self, start_s: float, end_s: float) -> Trace:
        """Keep the arrivals in [start_s, end_s) and count time from `start_s`."""
        times = self.requests["arrival_s"].to_numpy()
        kept = self.requests[(times >= start_s) & (times < end_s)]
        if kept.empty:
            raise UserError(
                f"trace '{self.name}' holds no requests from {start_s:g} to {end_s:g} s, "
                f"it spans {times[0]:g} to {times[-1]:g} s"
            )
        kept = kept.assign(arrival_s=np.maximum(kept["arrival_s"] - start_s, 0.0))
        return self._derived(kept, f"from {start_s:g} to {end_s:g} s")

    def scaled(self, rate_scale: float) -> Trace:
        """Multiply the arrival rate: every time is divided by `rate_scale`."""
        if not (rate_scale > 0 and math.isfinite(rate_scale)):
            raise UserError(f"rate scale must be positive and finite, got {rate_scale}")
        times = self.requests["arrival_s"] / rate_scale
        return self._derived(self.requests.assign(arrival_s=times), f"rate times {rate_scale:g}")

    def with_arrivals(
        self, process: str, rate_per_s: float, seed: int, cv: float | None = None
    ) -> Trace:
        """Keep the lengths and draw new arrivals; see `arrivals.arrival_times`."""
        rng = arrivals.streams(seed).arrivals
        times = arrivals.arrival_times(process, rate_per_s, len(self), rng, cv)
        note = f"{arrivals.describe(process, rate_per_s, cv)}, seed {seed}"
        return self._derived(self.requests.assign(arrival_s=times), note)

    def repeated(self, n: int) -> Trace:
        """Cycle through the requests until there are `n`; lap k's identifiers end in `#k`.

        A lap starts one mean gap after the last arrival of the lap before, so the rate stays.
        """
        if n <= len(self):
            return self.head(n)
        laps, rows = np.divmod(np.arange(n), len(self))
        gap_s = self.duration_s / (len(self) - 1) if len(self) > 1 else 0.0
        frame = self.requests.iloc[rows].reset_index(drop=True)
        suffix = np.where(laps > 0, "#" + laps.astype(str).astype(object), "")
        frame["request_id"] = frame["request_id"].astype(object) + suffix
        frame["arrival_s"] += laps * (self.duration_s + gap_s)
        return self._derived(frame, f"repeated to {n} requests")

    def with_category(self, category: str) -> Trace:
        """Put every request into one category."""
        return self._derived(self.requests.assign(category=category), f"category '{category}'")

    def _derived(self, frame: pd.DataFrame, note: str) -> Trace:
        changes: dict[str, Any] = {
            "requests": frame,
            "origin": f"{self.origin}; {note}".strip("; "),
        }
        return replace(self, **changes)
