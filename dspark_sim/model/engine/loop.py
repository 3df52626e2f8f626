"""Driving an engine in a closed loop, and its tables under the simulator's column names."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dspark_sim.core import NS_PER_S, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dspark_sim.model.engine.engine import Engine
    from dspark_sim.model.engine.report import StepReport
    from dspark_sim.model.engine.schedule import Request

_TIMES = ("arrival", "admitted", "first_token", "finish")
_COUNTS = ("steps", "draft_tokens", "verify_tokens", "accepted_tokens")
STEP_COLUMNS = (
    "start_ns", "step_ns", "num_requests", "prefill_tokens", "batch_tokens", "draft_tokens",
    "verify_tokens", "accepted_tokens", "output_tokens", "num_waiting", "host_ns", "draft_ns",
    "policy_ns", "verify_ns", "sample_ns", "extend_ns", "prefill_requests", "drafting_requests",
    "num_running", "draft_len", "kv_tokens_read",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class EngineRun:
    """What an engine did with a list of prompts.

    Attributes
    ----------
    requests : DataFrame
        One row per prompt, with the columns of a simulation's `Result.requests`; times count from
        the first arrival.
    steps : DataFrame
        One row per step: the columns of `Result.steps` (a slot counts as one KV block), the parts
        of the step and what else they may depend on.
    gaps : (n, 2)
        Times between chunks of output in ns, each once, as in `Result.gaps`.
    window : (int, int) or None
        First and last time, in ns, of the measured window of the closed loop: from the c-th
        completion to the last issue. None if it never opens.
    responses : list of token lists
    """

    requests: pd.DataFrame
    steps: pd.DataFrame
    gaps: NDArray[np.int64]
    window: tuple[int, int] | None
    responses: list[list[int]]


def run_closed_loop(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    concurrency: int,
    max_tokens: int | Sequence[int] = 64,
    *,
    stop: int | None = None,
    categories: Sequence[str] | None = None,
) -> EngineRun:
    """Serve all prompts with `concurrency` in flight: the next enters when one leaves.

    `max_tokens` is a number for all or one per prompt. The engine must be idle; request i of the
    tables is prompt i, and its luck hangs on i.
    """
    if not engine.idle:
        raise UserError("a closed loop needs an engine without requests")
    if concurrency < 1 or not prompts:
        raise UserError(f"a closed loop needs prompts and a concurrency, got {concurrency}")
    lengths = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else max_tokens
    kinds = [""] * len(prompts) if categories is None else categories
    queue = iter(enumerate(zip(prompts, lengths, kinds, strict=True)))

    def issue(count: int) -> list[Request]:
        return [
            engine.add(prompt, length, stop=stop, name=name, category=kind)
            for name, (prompt, length, kind) in islice(queue, count)
        ]

    requests = issue(concurrency)
    reports: list[StepReport] = []
    completed, opens, closes = 0, None, None
    while (report := engine.step()) is not None:
        reports.append(report)
        leaving = sum(output.finish_reason is not None for output in report.outputs)
        requests += issue(leaving)
        completed += leaving
        if opens is not None and closes is None and len(requests) == len(prompts):
            closes = report.end_ns
        elif opens is None and completed >= concurrency:
            opens = report.end_ns
    epoch_ns = requests[0].arrival_ns
    window = None
    if opens is not None and closes is not None:
        window = (opens - epoch_ns, closes - epoch_ns)
    return EngineRun(
        request_table(requests, epoch_ns),
        step_table(reports, epoch_ns),
        _gaps(reports),
        window,
        [request.tokens for request in requests],
    )


def request_table(requests: Sequence[Request], epoch_ns: int) -> pd.DataFrame:
    """Return finished requests as a table; latencies as in `simulator.metrics`."""
    table: dict[str, Any] = {
        "request_id": [str(r.name) for r in requests],
        "category": [r.category for r in requests],
        "prompt_tokens": [len(r.prompt) for r in requests],
        "output_tokens": [len(r.tokens) for r in requests],
    }
    for name in _TIMES:
        ns = np.array([getattr(r, f"{name}_ns") for r in requests], dtype=np.int64)
        table[f"{name}_s"] = (ns - epoch_ns) / NS_PER_S
    table |= {name: [getattr(r, name) for r in requests] for name in _COUNTS}
    frame = pd.DataFrame(table)
    frame["preemptions"] = 0
    later = (frame["output_tokens"] - 1).where(frame["output_tokens"] > 1)
    frame["ttft_ms"] = (frame["first_token_s"] - frame["arrival_s"]) * 1e3
    frame["e2el_ms"] = (frame["finish_s"] - frame["arrival_s"]) * 1e3
    frame["tpot_ms"] = (frame["e2el_ms"] - frame["ttft_ms"]) / later
    return frame


def step_table(reports: Sequence[StepReport], epoch_ns: int) -> pd.DataFrame:
    """Return steps as a table, times in ns since `epoch_ns`."""
    rows = [[getattr(report, name) for name in STEP_COLUMNS] for report in reports]
    frame = pd.DataFrame(rows, columns=list(STEP_COLUMNS), dtype="int64")
    frame["start_ns"] -= epoch_ns
    frame["kv_blocks"], frame["eager"] = frame["num_running"], 0
    return frame


def _gaps(reports: Sequence[StepReport]) -> NDArray[np.int64]:
    """Return the times between the chunks of every request, (n, 2), each counted once."""
    last: dict[int, int] = {}
    gaps = []
    for report in reports:
        for output in report.outputs:
            if output.id in last:
                gaps.append((report.end_ns - last[output.id], 1))
            last[output.id] = report.end_ns
    return np.array(gaps, dtype=np.int64).reshape(-1, 2)
