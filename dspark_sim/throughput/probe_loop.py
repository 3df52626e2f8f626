"""A closed loop of streams against a server, and the steps that its chunks tell of."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import UserError
from dspark_sim.throughput.probe_client import NO_METRICS, Answer

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from numpy.typing import NDArray

    from dspark_sim.throughput.probe import ProbeSettings
    from dspark_sim.throughput.probe_client import Endpoint
    from dspark_sim.throughput.probe_metrics import Metrics

    Times = NDArray[np.float64]

INTERRUPTED = "interrupted"
_BURST = 0.2  # of the mean gap
_OFTEN = 0.2  # of all gaps


@dataclass
class Loop:
    """What came of one closed loop.

    Attributes
    ----------
    num_requests : int
        R, streams at once.
    answers, warm_up : list of Answer
        Counted ones, and the first of every stream, which is not.
    before, after : Metrics
        The server's counters around it.
    failure : str or None
        Why it ended early, where the server is to blame or the user interrupted it.
    out_of_time : bool
        Whether it ended early because its time was up.
    """

    num_requests: int
    answers: list[Answer] = field(default_factory=list)
    warm_up: list[Answer] = field(default_factory=list)
    before: Metrics = NO_METRICS
    after: Metrics = NO_METRICS
    failure: str | None = None
    out_of_time: bool = False

    def gaps_ms(self) -> Times:
        """Return the times between a stream's chunks while all R streams decode, in ms."""
        return 1e3 * steady_gaps(bursts(self.answers), self.num_requests)

    def request_steps(self) -> int:
        """Return the decode steps of all requests, warm-up included: chunks after the first."""
        return sum(len(times) - 1 for times in bursts([*self.warm_up, *self.answers]))

    def tokens_per_chunk(self) -> float:
        """Return the mean tokens of a chunk after the first; NaN where none are counted."""
        chunks = bursts(self.answers)
        with_chunks = [answer for answer in self.answers if answer.chunks_s]
        pairs = [
            (answer.tokens - 1, len(times) - 1)
            for answer, times in zip(with_chunks, chunks, strict=True)
            if answer.ended and answer.tokens is not None
        ]
        steps = sum(count for _, count in pairs)
        return sum(tokens for tokens, _ in pairs) / steps if steps else float("nan")


def bursts(answers: Sequence[Answer]) -> list[Times]:
    """Return when each answer's chunks came, those of one burst as one.

    A server that sends every token by itself (llama.cpp) sends those of one step together. Gaps
    below a fifth of the mean gap separate no steps, if a fifth of all gaps is as short.
    """
    times = [np.array(answer.chunks_s) for answer in answers if answer.chunks_s]
    gaps = [np.diff(chunks) for chunks in times]
    every = np.concatenate(gaps) if gaps else np.empty(0)
    if not len(every):
        return times
    least = _BURST * every.mean()
    if (every < least).mean() < _OFTEN:
        return times
    return [
        chunks[np.concatenate(([True], gap >= least))]
        for chunks, gap in zip(times, gaps, strict=True)
    ]


def steady_gaps(requests: Sequence[Times], num_requests: int) -> Times:
    """Return the gaps in which exactly `num_requests` decode and none enters or leaves.

    A request decodes from its first to its last chunk. Same unit as the times.
    """
    decoding = [times for times in requests if len(times) > 1]
    if not decoding:
        return np.empty(0)
    first = np.sort([times[0] for times in decoding])
    last = np.sort([times[-1] for times in decoding])
    start = np.concatenate([times[:-1] for times in decoding])
    end = np.concatenate([times[1:] for times in decoding])
    entered = np.searchsorted(first, start, "right")
    left = np.searchsorted(last, start, "right")
    quiet = (np.searchsorted(first, end, "left") == entered) & (
        np.searchsorted(last, end, "left") == left
    )
    kept = quiet & (entered - left == num_requests)
    return np.asarray((end - start)[kept])


async def closed_loop(
    endpoint: Endpoint, num_requests: int, settings: ProbeSettings, max_seconds: float
) -> Loop:
    """Keep so many streams busy until enough steady steps are seen, time is up or one fails.

    The first answer of every stream only warms up.
    """
    loop = Loop(num_requests)
    enough = asyncio.Event()
    tokens = settings.output_tokens

    async def stream(number: int) -> None:
        turn = 0
        while not enough.is_set():
            answer = Answer(time.perf_counter())
            (loop.answers if turn else loop.warm_up).append(answer)
            prompt = f"Count upwards from {number + num_requests * turn}:"
            await endpoint.complete(answer, prompt, tokens, settings.temperature)
            if len(answer.chunks_s) <= 1:
                raise UserError(
                    f"{endpoint.url} does not stream: {tokens} tokens came as one chunk"
                )
            turn += 1
            if turn > 1 and number == 0 and len(loop.gaps_ms()) >= settings.steps * num_requests:
                enough.set()

    try:
        async with asyncio.timeout(max_seconds):
            loop.before = await endpoint.metrics()
            await _all(stream(number) for number in range(num_requests))
    except TimeoutError:
        loop.out_of_time = True
    except UserError as error:
        loop.failure = str(error)
    except asyncio.CancelledError:
        _keep_going()
        loop.failure = INTERRUPTED
    if loop.failure is None:
        try:
            loop.after = await endpoint.metrics()
        except UserError as error:
            loop.failure = str(error)
    return loop


def _keep_going() -> None:
    """Take an interruption (Ctrl-C) as an end of measuring, not of the program."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


async def _all(streams: Iterable[Coroutine[None, None, None]]) -> None:
    """Run streams together; when one fails, end the others."""
    tasks = [asyncio.ensure_future(stream) for stream in streams]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
