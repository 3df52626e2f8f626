"""The engine in a thread of its own, and the streams in which its tokens reach the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dspark_sim.core import RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dspark_sim.model.engine import Engine, Request, Sampling, StepReport
    from dspark_sim.model.engine.schedule import FinishReason
    from dspark_sim.model.server.metrics import ServerMetrics


@dataclass(frozen=True)
class Chunk:
    """What one engine step adds to a response."""

    tokens: list[int]
    finish_reason: FinishReason | None


@dataclass(eq=False)
class Stream:
    """The chunks of one response, in order, up to the one with a finish reason."""

    worker: Worker
    request: Request | None = None
    chunks: asyncio.Queue[Chunk] = field(default_factory=asyncio.Queue)
    last_ns: int = -1
    ended: bool = False

    async def next(self) -> Chunk:
        """Wait for the next chunk.

        Raises
        ------
        RunError
            The engine has failed.
        """
        chunk = await self.chunks.get()
        if chunk.finish_reason is not None:
            self.ended = True
            self.worker.forget(self)
        if self.worker.failure is not None:
            raise RunError(f"the engine failed: {self.worker.failure}")
        return chunk

    def close(self) -> None:
        """Free the slot, or leave the queue, unless the response is complete."""
        if not self.ended:
            self.ended = True
            self.worker.abort(self)
            self.worker.forget(self)


class Worker:
    """Steps an engine while there is work; everything else asks it by commands.

    Parameters
    ----------
    engine : Engine
        Touched by the worker's thread alone from `start` on.
    metrics : ServerMetrics
        Told of every step, in the event loop.
    """

    def __init__(self, engine: Engine, metrics: ServerMetrics) -> None:
        self.engine, self.metrics = engine, metrics
        self.failure: str | None = None
        self.on_failure: Callable[[], object] = lambda: None
        self._commands: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._fed: dict[int, Stream] = {}  # the thread's: by request
        self._open: set[Stream] = set()  # the event loop's
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the thread; the running event loop gets its news."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """End after the current step; open streams end as aborted. May be called from anywhere."""
        self._commands.put(None)

    async def stopped(self) -> None:
        """Stop, and wait for the thread's end."""
        self.stop()
        await asyncio.to_thread(self._thread.join)

    @property
    def alive(self) -> bool:
        """Whether requests are served."""
        return self._thread.is_alive() and not self._closed

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: Sampling,
        stop: int | None,
        name: int | None,
    ) -> Stream:
        """Put a request in the engine's queue and return its stream; see `Engine.add`."""
        self.engine.check(prompt, max_tokens)
        if self._closed:
            raise RunError("the engine has stopped")
        stream, arrival_ns = Stream(self), self.engine.now_ns()
        self._open.add(stream)

        def add() -> None:
            if not stream.ended:
                stream.request = self.engine.add(
                    prompt,
                    max_tokens,
                    sampling=sampling,
                    stop=stop,
                    name=name,
                    arrival_ns=arrival_ns,
                )
                self._fed[stream.request.id] = stream

        self._commands.put(add)
        return stream

    def abort(self, stream: Stream) -> None:
        """Drop a stream's request."""

        def drop() -> None:
            if stream.request is not None:
                self.engine.abort(stream.request.id)
                self._fed.pop(stream.request.id, None)

        self._commands.put(drop)

    def forget(self, stream: Stream) -> None:
        """Note that a stream has ended."""
        self._open.discard(stream)

    def _run(self) -> None:
        try:
            while self._obey():
                report = self.engine.step()
                if report is not None:
                    self._deliver(report)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            self._tell(self.on_failure)
        finally:
            self._tell(self._abandon)

    def _abandon(self) -> None:
        """End the streams that nobody feeds any more."""
        self._closed = True
        for stream in self._open:
            stream.chunks.put_nowait(Chunk([], "abort"))

    def _obey(self) -> bool:
        """Carry out what was asked, waiting if there is nothing to do; False to stop."""
        while True:
            try:
                command = self._commands.get(block=self.engine.idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            if self.engine.idle:
                self._tell(self.metrics.idle)

    def _deliver(self, report: StepReport) -> None:
        news = [
            (self._fed.pop(o.id) if o.finish_reason else self._fed[o.id], o) for o in report.outputs
        ]
        running, waiting = self.engine.num_running, self.engine.num_waiting

        def put() -> None:
            self.metrics.step(report, running, waiting)
            for stream, output in news:
                assert stream.request is not None
                self.metrics.output(stream.request, output, stream.last_ns, report.end_ns)
                stream.last_ns = report.end_ns
                stream.chunks.put_nowait(Chunk(output.tokens, output.finish_reason))

        self._tell(put)

    def _tell(self, call: Callable[[], object]) -> None:
        """Have the event loop call something, unless it has closed."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)
