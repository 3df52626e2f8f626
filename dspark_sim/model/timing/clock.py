"""Timing one piece of work: wall clock on a CPU, events and captured graphs on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

Work = Callable[[], object]


@dataclass
class Clock:
    """Times work on one device; GPU graphs share one pool of memory and one stream."""

    device: torch.device
    graphs: list[torch.cuda.CUDAGraph] = field(default_factory=list)
    stream: torch.cuda.Stream | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether work is launched and finishes later."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Wait until the device has done everything."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def ms(self, work: Work) -> float:
        """Return the milliseconds that the work takes on the device."""
        if not self.on_gpu:
            start = time.perf_counter()
            work()
            return 1e3 * (time.perf_counter() - start)
        cuda: Any = torch.cuda  # whose events and streams carry no types
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        self.wait()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def best(self, work: Work, times: int = 5) -> float:
        """Return the least of several timings, after one that does not count."""
        return min([self.ms(work) for _ in range(times + 1)][1:])

    def host_ms(self, work: Work) -> float:
        """Return the wall milliseconds until the work and all it launched are done."""
        self.wait()
        start = time.perf_counter()
        work()
        self.wait()
        return 1e3 * (time.perf_counter() - start)

    def prepare(self, work: Work, captured: bool) -> tuple[Work, float]:
        """Warm work up, on a GPU capture it as a graph if asked.

        Returns what to run from now on, and about how long (wall ms) that takes.
        """
        if not self.on_gpu:
            return work, self.host_ms(work)
        if captured:
            work = self._capture(work)
        else:
            work()
        work()
        return work, self.host_ms(work)

    def _capture(self, work: Work) -> Work:
        cuda: Any = torch.cuda
        stream = self.stream = self.stream or cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):  # libraries set themselves up on the capturing stream
            for _ in range(2):
                work()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        pool = self.graphs[0].pool() if self.graphs else None
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            work()
        self.graphs.append(graph)
        return graph.replay


@dataclass(frozen=True)
class Spread:
    """Median, 10th and 90th percentile of repeated timings, and how many lie far off."""

    ms: float
    p10_ms: float
    p90_ms: float
    n: int
    outliers: int

    @classmethod
    def of(cls, samples: list[float]) -> Spread:
        """Summarise timings; an outlier is more than 5 robust standard deviations off."""
        values = np.asarray(samples)
        middle = float(np.median(values))
        deviation = 1.4826 * float(np.median(np.abs(values - middle)))
        far = np.abs(values - middle) > np.maximum(5 * deviation, 0.01 * middle)
        low, high = np.quantile(values, [0.1, 0.9])
        return cls(middle, float(low), float(high), len(values), int(far.sum()))

    @property
    def width(self) -> float:
        """From p10 to p90, as a share of the median."""
        return (self.p90_ms - self.p10_ms) / self.ms
