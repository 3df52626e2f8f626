"""Who carries out the runs of a sweep: this process, worker processes, or a cluster.

Each is a context that gives a function from runs to their summaries. What a run returns does not
depend on who carries it out.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import joblib
from loky import get_reusable_executor

from dspark_sim.core import OBJECTS_BEFORE_COLLECTING, RunError, UserError, unknown_name, whole_file
from dspark_sim.jit import is_compiled
from dspark_sim.study.cluster import cluster
from dspark_sim.study.folder import scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from dspark_sim.study.inputs import SharedInputs
    from dspark_sim.study.run import CarryOut, Run, Summary

    Task = tuple[Run, str, str, str]  # a run and the paths of its three pieces

BACKENDS = ("loky", "dask")
IDLE_S = 300  # after which a worker that has nothing to do ends
AHEAD = 2  # batches that each worker is given before it has done the first of them
BATCHES = 16  # that a worker's share of what is left would make, at least
BATCH_S = 0.5  # that a batch of more than one run is to take at most


@dataclass(frozen=True)
class Workers:
    """The choice of who carries out the runs of a sweep.

    Parameters
    ----------
    backend
        "loky": processes on this computer; "dask": the workers of a Dask cluster.
    jobs
        Processes that carry out runs, this one included; -1: one per core.
    scheduler
        Address of Dask's scheduler, as in tcp://10.0.0.1:8786.

    Raises
    ------
    UserError
        The backend is unknown, or the others do not belong to it.
    """

    backend: str = "loky"
    jobs: int = 1
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise unknown_name("backend", self.backend, BACKENDS)
        if self.jobs == 0 or self.jobs < -1:
            raise UserError(f"jobs must be 1 or more, or -1 for all cores, got {self.jobs}")
        if self.backend == "dask" and not self.scheduler:
            raise UserError(
                "backend dask needs the address of its scheduler, as tcp://10.0.0.1:8786"
            )
        if self.backend != "dask" and self.scheduler:
            raise UserError(f"scheduler '{self.scheduler}' belongs to the backend dask")

    def open(self, inputs: SharedInputs, out: Path | None) -> AbstractContextManager[CarryOut]:
        """Return a context that gives the function that carries out runs."""
        if self.scheduler:
            return cluster(inputs, self.scheduler)
        jobs = joblib.cpu_count() if self.jobs == -1 else self.jobs
        return in_process(inputs) if jobs == 1 else processes(inputs, jobs, out)


@contextmanager
def in_process(inputs: SharedInputs) -> Iterator[CarryOut]:
    """Carry out runs here, one after the other."""

    def carry_out(runs: Sequence[Run]) -> Iterator[tuple[int, Summary]]:
        for run in runs:
            pieces = [make() for make in inputs.pieces(run.scenario).values()]
            yield run.number, run.carry_out(*pieces)

    yield carry_out


@contextmanager
def processes(inputs: SharedInputs, jobs: int, out: Path | None) -> Iterator[CarryOut]:
    """Carry out runs here and in `jobs` - 1 worker processes, which map every input from a file.

    A worker is sent the run and the paths of its inputs, nothing else. Where nothing is compiled
    yet the first run is carried out alone, so that the workers find the kernels on disk.
    """
    with scratch(out) as shelf, in_process(inputs) as alone, _started(jobs - 1) as workers:
        shelved: dict[str, str] = {}

        def task(run: Run) -> Task:
            pieces = inputs.pieces(run.scenario)
            for name, make in pieces.items():
                if name not in shelved:
                    shelved[name] = str(shelf / name)
                    with whole_file(shelved[name]) as aside:
                        joblib.dump(make(), aside)
            profiles, acceptance, trace = (shelved[name] for name in pieces)
            return run, profiles, acceptance, trace

        def carry_out(runs: Sequence[Run]) -> Iterator[tuple[int, Summary]]:
            first = [] if is_compiled() else runs[:1]
            yield from alone(first)
            yield from _shared([task(run) for run in runs[len(first) :]], *workers)

        yield carry_out


@contextmanager
def _started(count: int) -> Iterator[tuple[Any, list[Future[None]]]]:
    """Start workers; give their pool, and what is done once each of them can work.

    Where all was carried out before any of them could, they are stopped again.
    """
    pool = get_reusable_executor(
        count,
        timeout=IDLE_S,
        initializer=gc.set_threshold,
        initargs=(OBJECTS_BEFORE_COLLECTING,),
    )
    ready = [pool.submit(_be_ready) for _ in range(count)]
    try:
        yield pool, ready
    finally:
        if not any(future.done() for future in ready):
            pool.shutdown(kill_workers=True)


def _be_ready() -> None:
    """Look for no garbage among what a worker has loaded, which took it half a second."""
    gc.freeze()


def _shared(
    tasks: Sequence[Task], pool: Any, ready: Sequence[Future[None]]
) -> Iterator[tuple[int, Summary]]:
    """Carry out tasks from the front in workers, once they are ready, and from the back here."""
    waiting, left, ended = deque(tasks), len(tasks), False
    landed: SimpleQueue[Future[Any]] = SimpleQueue()
    start = time.perf_counter()

    def begin(future: Future[None]) -> None:
        if future.exception() is not None:
            landed.put(future)
            return
        for _ in range(AHEAD):
            send()

    def send() -> None:
        done = len(tasks) - left
        runs_per_s = done / (time.perf_counter() - start) if done else 0.0
        size = batch_size(len(waiting), len(ready), runs_per_s)
        batch = [task for _ in range(size) if (task := _taken(waiting.popleft))]
        if not batch:
            return
        try:
            pool.submit(_with_files, batch).add_done_callback(receive)
        except BrokenProcessPool as error:
            lost: Future[Any] = Future()
            lost.set_exception(error)
            landed.put(lost)

    def receive(future: Future[Any]) -> None:
        landed.put(future)
        send()

    try:
        for future in ready:
            future.add_done_callback(begin)
        while left:
            task = _taken(waiting.pop) if landed.empty() else None
            rows = landed.get().result() if task is None else _with_files([task])
            left -= len(rows)
            yield from rows
        ended = True
    except BrokenProcessPool:
        raise RunError(
            "a worker process was killed, perhaps for want of memory; what was finished is kept: "
            "give the same command again, with fewer --jobs"
        ) from None
    finally:
        waiting.clear()
        if not ended:
            pool.shutdown(kill_workers=True)


def batch_size(waiting: int, workers: int, runs_per_s: float) -> int:
    """Return how many runs go to a worker together, where all processes do so many per second."""
    quick = int(BATCH_S * runs_per_s / (workers + 1))
    return max(1, min(waiting // (BATCHES * workers), quick))


def _taken(take: Callable[[], Task]) -> Task | None:
    try:
        return take()
    except IndexError:  # others took the rest
        return None


def _with_files(tasks: Sequence[Task]) -> list[tuple[int, Summary]]:
    return [
        (run.number, run.carry_out(_kept(profiles), _kept(acceptance), _latest(trace)))
        for run, profiles, acceptance, trace in tasks
    ]


@lru_cache(maxsize=32)
def _kept(path: str) -> Any:
    return _mapped(path)


@lru_cache(maxsize=1)
def _latest(path: str) -> Any:
    return _mapped(path)


def _mapped(path: str) -> Any:
    """Return a piece whose arrays stay on disk, copied where written. No path is used twice."""
    return joblib.load(path, mmap_mode="c")
