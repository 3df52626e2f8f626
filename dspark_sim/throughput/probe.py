"""Probing a running server: step times by load from outside, without knowing its engine."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd

from dspark_sim.core import UserError
from dspark_sim.throughput.probe_client import Answer, connected
from dspark_sim.throughput.probe_loop import INTERRUPTED, closed_loop
from dspark_sim.throughput.probe_metrics import engine_step_ms, speculation

if TYPE_CHECKING:
    from collections.abc import Callable

    from dspark_sim.throughput.probe_client import Endpoint
    from dspark_sim.throughput.probe_loop import Loop

_REPEATS = 5
_FEWEST_GAPS = 8
_FEWEST_TOKENS = 8


@dataclass(frozen=True)
class ProbeSettings:
    """What to ask a server.

    Attributes
    ----------
    base_url : str
        With or without /v1.
    model : str or None
        Its name there; by default the server's first.
    concurrency : tuple of int
        R, streams at once, one closed loop each.
    output_tokens : int
        Of every answer, 8 or more; the end-of-text token is ignored.
    max_seconds : float
        Of the whole probe. What does not fit is left out.
    temperature : float
    draft_len : int or None
        k, of a server that speculates and does not report how far.
    steps : int
        So many steps, seen by every stream, are enough for one R.
    """

    base_url: str
    model: str | None = None
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16)
    output_tokens: int = 64
    max_seconds: float = 120.0
    temperature: float = 0.0
    draft_len: int | None = None
    steps: int = 200

    def __post_init__(self) -> None:
        if not _is_address(self.base_url):
            raise UserError(f"'{self.base_url}' is no address; as in http://127.0.0.1:8000")
        if not self.concurrency or min(self.concurrency) < 1:
            raise UserError(f"concurrency must be numbers of 1 or more, got {self.concurrency}")
        if self.output_tokens < _FEWEST_TOKENS:
            raise UserError(
                f"output_tokens must be {_FEWEST_TOKENS} or more, got {self.output_tokens}"
            )
        for key, least in (("max_seconds", "above 0"), ("temperature", "0 or more")):
            value = getattr(self, key)
            if not (math.isfinite(value) and (value > 0 or (value == 0 and key == "temperature"))):
                raise UserError(f"{key} must be {least}, got {value:g}")
        if self.draft_len is not None and self.draft_len < 0:
            raise UserError(f"draft_len must be 0 or more, got {self.draft_len}")
        if self.steps < _FEWEST_GAPS:
            raise UserError(f"steps must be {_FEWEST_GAPS} or more, got {self.steps}")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port
        return False


@dataclass(frozen=True, eq=False)
class Probed:
    """What a probe found out.

    Attributes
    ----------
    url, model : str
    engine : str or None
        Named by its metrics.
    levels : DataFrame
        One row per R that was measured: num_requests; num_speculative_tokens (k, drafts of a
        block); batch_tokens (R × (1 + verified per request and step)); ms, p10_ms, p90_ms,
        mean_ms (from p10 to p90), n of the times between chunks; engine_ms, engine_steps (mean and
        number of the server's own steps); overhead_ms (the lesser of mean_ms and ms, less
        engine_ms, 0 at least) and net_ms (ms - overhead_ms); acceptance_length; drafts_per_chunk
        (above 1 where chunks hold several steps); tokens_per_chunk; kv_tokens_read. NaN: not told.
    left_out : tuple of str
        Loads that were not measured, each with its reason.
    failure : str or None
        What ended the probe: the server's fault, or `interrupted`.
    health_ms, request_ms : float
        Median time of /health and of a streamed request for one token.
    settings : ProbeSettings
    """

    url: str
    model: str
    engine: str | None
    levels: pd.DataFrame
    left_out: tuple[str, ...]
    failure: str | None
    health_ms: float
    request_ms: float
    settings: ProbeSettings


def probe_server(
    settings: ProbeSettings, note: Callable[[str], None] = lambda text: None
) -> Probed:
    """Measure an OpenAI-compatible server from outside (httpx).

    For every R as many streams of fixed length are kept busy. The time between two chunks of a
    stream is a step, drafting included, if all R streams decode from the one to the other. Where
    the server reports its speculation (vLLM's, SGLang's and llama.cpp's names at /metrics), k, the
    acceptance length and the tokens verified per step are told beside it.

    Raises
    ------
    UserError
        One sentence, if nothing could be measured. A later fault is `Probed.failure`.
    """
    return asyncio.run(_probe(settings, note))


async def _probe(settings: ProbeSettings, note: Callable[[str], None]) -> Probed:
    deadline = time.monotonic() + settings.max_seconds
    async with connected(settings.base_url, settings.max_seconds) as endpoint:
        try:
            async with asyncio.timeout(settings.max_seconds):
                model = await endpoint.find_model(settings.model)
                health_ms = await _health_ms(endpoint)
                request_ms = await _request_ms(endpoint, settings.temperature)
        except TimeoutError:
            raise UserError(
                f"{endpoint.url} is too slow: {settings.max_seconds:g} s (--max-seconds) passed "
                "before the first loop"
            ) from None
        loops = await _loops(endpoint, settings, deadline, note)
    rows = [row for loop in loops if (row := _level(loop, settings)) is not None]
    left_out = _left_out(loops, [row["num_requests"] for row in rows], settings)
    failure = loops[-1].failure if loops else None
    if not rows:
        raise UserError(failure or f"{endpoint.url}: no steps were measured; {left_out[0]}")
    told = [name for loop in loops if (name := loop.after.engine) is not None]
    return Probed(
        endpoint.url, model, told[0] if told else None, pd.DataFrame(rows), left_out, failure,
        health_ms, request_ms, settings,
    )  # fmt: skip


async def _loops(
    endpoint: Endpoint,
    settings: ProbeSettings,
    deadline: float,
    note: Callable[[str], None],
) -> list[Loop]:
    """Run one closed loop per R; each may take an equal share of what time is left."""
    loops: list[Loop] = []
    levels = sorted(set(settings.concurrency))
    for index, requests in enumerate(levels):
        seconds = (deadline - time.monotonic()) / (len(levels) - index)
        if seconds <= 0:
            break
        note(f"probing R = {requests} …")
        loops.append(await closed_loop(endpoint, requests, settings, seconds))
        if loops[-1].failure is not None:
            break
    return loops


async def _health_ms(endpoint: Endpoint) -> float:
    times = [await endpoint.health_s() for _ in range(_REPEATS)]
    known = [seconds for seconds in times if seconds is not None]
    return 1e3 * float(np.median(known)) if known else math.nan


async def _request_ms(endpoint: Endpoint, temperature: float) -> float:
    times = []
    for number in range(_REPEATS):
        start = time.perf_counter()
        await endpoint.complete(Answer(start), f"Count upwards from {number}:", 1, temperature)
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def _level(loop: Loop, settings: ProbeSettings) -> dict[str, Any] | None:
    """Return the row of a loop; None where it saw too few steps."""
    gaps = loop.gaps_ms()
    if len(gaps) < _FEWEST_GAPS:
        return None
    requests = loop.num_requests
    p10, median, p90 = np.percentile(gaps, (10, 50, 90))
    engine, steps = engine_step_ms(loop.before, loop.after, requests)
    mean = float(gaps[(gaps >= p10) & (gaps <= p90)].mean())
    overhead = max(0.0, min(mean, float(median)) - engine) if steps else math.nan
    return {
        "num_requests": requests,
        **_drafts(loop, settings),
        "ms": median,
        "p10_ms": p10,
        "p90_ms": p90,
        "mean_ms": mean,
        "n": len(gaps),
        "engine_ms": engine,
        "engine_steps": steps,
        "overhead_ms": overhead,
        "net_ms": median - overhead,
        "tokens_per_chunk": loop.tokens_per_chunk(),
        "kv_tokens_read": _context(loop, settings.output_tokens),
    }


def _drafts(loop: Loop, settings: ProbeSettings) -> dict[str, Any]:
    """Return what is verified per request and step, and how much of it is accepted."""
    found = speculation(loop.before, loop.after)
    chunks = loop.request_steps()
    steps = float(np.fmax(chunks, found.drafts))
    length = found.acceptance_length
    if found.draft_tokens >= 0:
        verified, draft_len = found.draft_tokens / steps, found.draft_len
        if math.isnan(draft_len):
            draft_len, length = verified, 1.0 + found.accepted_tokens / steps
    else:
        draft_len = found.draft_len
        if math.isnan(draft_len):
            draft_len = float(settings.draft_len or 0)
        verified = draft_len
    return {
        "num_speculative_tokens": draft_len,
        "batch_tokens": round(loop.num_requests * (1.0 + verified)),
        "acceptance_length": length,
        "drafts_per_chunk": found.drafts / chunks,
    }


def _context(loop: Loop, output_tokens: int) -> int:
    """Return the KV tokens that a step reads on average; 0 where prompts are not counted."""
    prompts = [a.prompt_tokens for a in loop.answers if a.prompt_tokens is not None]
    if not prompts:
        return 0
    return round(loop.num_requests * (float(np.mean(prompts)) + output_tokens / 2))


def _left_out(loops: list[Loop], measured: list[int], settings: ProbeSettings) -> tuple[str, ...]:
    reasons = {}
    for loop in loops:
        if loop.failure is not None:
            reasons[loop.num_requests] = _end(loop)
        elif loop.out_of_time:
            reasons[loop.num_requests] = "its time was up (--max-seconds)"
        else:
            reasons[loop.num_requests] = (
                "its streams were hardly ever all in decode (does the server queue them? "
                "--output-tokens may be longer)"
            )
    unasked = "the time was up (--max-seconds)"
    if loops and loops[-1].failure is not None:
        unasked = f"{_end(loops[-1])} before"
    return tuple(
        f"R = {requests}: {reasons.get(requests, unasked)}"
        for requests in sorted(set(settings.concurrency) - set(measured))
    )


def _end(loop: Loop) -> str:
    return "it was interrupted" if loop.failure == INTERRUPTED else "the server failed"
