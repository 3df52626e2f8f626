"""From the state of a finished run to its result."""

from __future__ import annotations

import hashlib
import importlib.metadata
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dspark_sim.core import NS_PER_S
from dspark_sim.simulator import state as s
from dspark_sim.simulator.fleet import merged, replica_of_steps
from dspark_sim.simulator.metrics import (
    latency_statistics,
    request_latencies,
    run_metrics,
    window_metrics,
)
from dspark_sim.simulator.result import Result, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dspark_sim.acceptance import AcceptanceSource
    from dspark_sim.config import Scenario
    from dspark_sim.simulator.engine import Replica
    from dspark_sim.throughput import EngineProfile
    from dspark_sim.trace import Trace


def collect(
    scenario: Scenario,
    replicas: Sequence[Replica],
    served: NDArray[np.int64],
    trace: Trace,
    profile: EngineProfile,
    source: AcceptanceSource,
    temperatures: tuple[float, ...] | None = None,
) -> Result:
    """Return tables, metrics and provenance of a run that has ended.

    `served` (requests,) holds the number of each request's replica.
    """
    state, replica = merged(replicas, served), replicas[0]
    state.counters[s.C_TIME] = state.clock[s.NOW]
    requests = _request_table(state, trace)
    gaps = state.gaps[: state.clock[s.NUM_GAPS]]
    steps = pd.DataFrame(state.steps[: state.clock[s.NUM_STEPS]], columns=list(s.STEP_COLUMNS))
    if len(replicas) > 1:
        requests.insert(2, "replica", served)
        steps.insert(0, "replica", replica_of_steps(replicas) if len(steps) else 0)
    objectives = {str(metric): limit for metric, limit in scenario.goodput.items()}
    trimmed = bool(state.clock[s.WINDOW] == 2)
    opened, closed = state.window if trimmed else (np.zeros_like(state.counters), state.counters)
    if not trimmed:
        opened[s.C_TIME] = state.requests[s.ARRIVAL].min()
    # In a closed loop the requests that *finish* in the window are the unbiased sample: those
    # issued in it partly run while the load already drains. In an open loop it is the arrivals.
    moment = state.requests[s.FINISH if scenario.concurrency else s.ARRIVAL]
    inside = (moment > opened[s.C_TIME]) & (moment <= closed[s.C_TIME])
    latencies = latency_statistics(requests, gaps)
    own = latencies
    if trimmed:
        between = gaps[opened[s.C_GAPS] : closed[s.C_GAPS]]
        own = latency_statistics(requests[inside], between)
    summary = {
        "window": "trimmed" if trimmed else "whole",
        **window_metrics(
            closed - opened,
            requests[inside] if trimmed else requests,
            own,
            profile.num_gpus,
            len(replicas),
        ),
        **run_metrics(state.counters, requests, latencies, objectives),
    }
    config = _provenance(scenario, replica, trace, profile, source, temperatures)
    kept = requests if scenario.record != "summary" else requests[:0]
    return Result(config, summary, kept, steps, gaps)


def _provenance(
    scenario: Scenario,
    replica: Replica,
    trace: Trace,
    profile: EngineProfile,
    source: AcceptanceSource,
    temperatures: tuple[float, ...] | None,
) -> dict[str, Any]:
    """Return the scenario, its inputs with hashes, and versions: all that a result hangs on."""
    return {
        "scenario": scenario.model_dump(mode="json"),
        "trace": {"name": trace.name, "origin": trace.origin, "requests": len(trace)},
        "profile": {"name": profile.name, **profile.provenance},
        "acceptance": {"name": source.name, "origin": source.origin},
        "temperatures": temperatures,
        "policy": replica.policy_name,
        "max_draft_len": replica.engine.gamma,
        "max_running": replica.engine.max_running,
        "record_every": int(replica.state.clock[s.RECORD_EVERY]),
        "hashes": {
            "trace": _hash(_content(trace.requests)),
            "profile": profile_hash(profile),
            "temperatures": None if temperatures is None else _hash(repr(temperatures).encode()),
        },
        "versions": dict(_versions()),
    }


def _request_table(state: s.State, trace: Trace) -> pd.DataFrame:
    rows, frame = state.requests, trace.requests
    table = pd.DataFrame(
        {
            "request_id": frame["request_id"],
            "category": frame["category"],
            "prompt_tokens": rows[s.PROMPT],
            "output_tokens": rows[s.OUTPUT],
            "arrival_s": rows[s.ARRIVAL] / NS_PER_S,
            "admitted_s": rows[s.ADMITTED] / NS_PER_S,
            "first_token_s": rows[s.FIRST_TOKEN] / NS_PER_S,
            "finish_s": rows[s.FINISH] / NS_PER_S,
            "steps": rows[s.STEPS],
            "draft_tokens": rows[s.DRAFTED],
            "verify_tokens": rows[s.VERIFIED],
            "accepted_tokens": rows[s.ACCEPTED],
            "preemptions": rows[s.PREEMPTED],
        }
    )
    return request_latencies(table)


def profile_hash(profile: EngineProfile) -> str:
    """Return a hash of all that a profile says: its header and its tables."""
    tables = (profile.verify, profile.draft, profile.requests, profile.prefill)
    contents = [b"" if table is None else _content(table) for table in tables]
    return _hash(to_json(profile.header()).encode() + b"".join(contents))


def _content(table: pd.DataFrame) -> bytes:
    """Return the bytes of a table: the same only for equal tables."""
    parts = []
    for name, column in table.items():
        number = pd.api.types.is_numeric_dtype(column.dtype)
        values = column.to_numpy().tobytes() if number else "\0".join(column.tolist()).encode()
        kind = column.dtype.kind if number else "text"
        parts += [f"{name} {kind} {len(values)}\n".encode(), values]
    return b"".join(parts)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    names = ("dspark-sim", "numpy", "numba", "pandas", "simpy")
    return tuple((name, importlib.metadata.version(name)) for name in names)
