"""Runs of a sweep on the workers of a Dask cluster (extra `cluster`).

The inputs travel as tasks of their own: the scheduler keeps them and hands them to each worker that
needs them, also to one that joins late or takes over from one that died. Results come back to the
caller, who writes them: workers share no folder with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import logging
import operator
import pickle
import uuid
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from dspark_sim.core import RunError, UserError
from dspark_sim.study.folder import store
from dspark_sim.study.run import as_files, as_read

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dspark_sim.study.inputs import SharedInputs
    from dspark_sim.study.run import CarryOut, Run, Summary

CONNECT_S = 10
WORKER_S = 60
PACKAGES = ("dspark-sim", "numba", "numpy", "pandas", "pyarrow", "scipy", "simpy")


@contextmanager
def cluster(inputs: SharedInputs, scheduler: str) -> Iterator[CarryOut]:
    """Carry out runs on a cluster, given the address of its scheduler.

    A run whose worker dies is given to another; a run of which several die ends the sweep.

    Raises
    ------
    UserError
        The extra is not installed, no scheduler answers, or a worker has other versions.
    RunError
        No worker joins, the scheduler is lost, or a run kills its workers.
    """
    lost = (CancelledError, _distributed().comm.CommClosedError)
    with _connected(scheduler) as client:
        sent: dict[str, Any] = {}

        def carry_out(runs: Sequence[Run]) -> Iterator[tuple[int, Summary]]:
            by_key = {f"dspark-sim-run-{uuid.uuid4().hex}": run for run in runs}
            try:
                yield from _results(client, inputs, sent, by_key)
            except lost:
                raise RunError(
                    f"the scheduler at {scheduler} was lost; what was finished is kept: give the "
                    "same command again"
                ) from None
            except ModuleNotFoundError as error:
                raise UserError(
                    f"a worker of the scheduler at {scheduler} lacks '{error.name}': what runs "
                    "here must be installed there too"
                ) from None

        yield carry_out


def _results(
    client: Any, inputs: SharedInputs, sent: dict[str, Any], runs: dict[str, Run]
) -> Iterator[tuple[int, Summary]]:
    """Send the runs; give numbers and summaries as results come back, which are written first."""
    distributed, versions = _distributed(), _installed()
    futures = []
    for key, run in runs.items():
        pieces = [
            _send(client, sent, name, make) for name, make in inputs.pieces(run.scenario).items()
        ]
        job = pickle.dumps(partial(_remotely, run, versions))  # unpacked by a task, which may fail
        call = client.submit(pickle.loads, job, key=f"{key}-job")
        futures.append(client.submit(operator.call, call, *pieces, key=key))
    done = distributed.as_completed(futures, loop=client.loop)
    futures.clear()  # a result is forgotten everywhere once it is written
    for future in done:
        run = runs[future.key]
        try:
            result = future.result()
        except distributed.KilledWorker:
            raise RunError(
                f"policy '{run.scenario.policy}' at "
                f"{run.scenario.concurrency or run.scenario.request_rate} ended several workers, "
                "perhaps for want of memory; what was finished is kept"
            ) from None
        future.release()
        if run.folder is not None:
            store(run.folder, result)
            result = as_read(result["summary.json"])
        yield run.number, result


def _send(client: Any, sent: dict[str, Any], name: str, make: Any) -> Any:
    """Return a piece as a task that the cluster can do again wherever it is lost."""
    if name not in sent:
        content = pickle.dumps(make(), protocol=pickle.HIGHEST_PROTOCOL)
        key = f"dspark-sim-input-{hashlib.sha256(content).hexdigest()[:32]}"
        sent[name] = client.submit(bytes, content, key=key)
    return sent[name]


def _remotely(
    run: Run, versions: dict[str, str], profiles: bytes, acceptance: bytes, trace: bytes
) -> Any:
    """Carry out a run on a worker; return the files of the result, or its summary if not kept."""
    for name, version in _installed().items():
        if versions[name] != version:
            raise UserError(
                f"a worker has {name} {version}, this computer {versions[name]}: the results could "
                "differ; install the same versions"
            )
    result = run.simulate(_kept(profiles), _kept(acceptance), _latest(trace))
    return result.summary if run.folder is None else as_files(result)


@lru_cache(maxsize=32)
def _kept(content: bytes) -> Any:
    return pickle.loads(content)


@lru_cache(maxsize=1)
def _latest(content: bytes) -> Any:
    return pickle.loads(content)


@lru_cache(maxsize=1)
def _installed() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


@contextmanager
def _connected(scheduler: str) -> Iterator[Any]:
    """Give a client of a scheduler that answers and has a worker."""
    distributed = _distributed()
    import dask

    unwarned = {"distributed.admin.large-graph-warning-threshold": "1TB"}  # inputs are sent once
    with _quiet(), dask.config.set(unwarned):
        _check_scheduler(scheduler)
        with distributed.Client(scheduler, timeout=CONNECT_S, set_as_default=False) as client:
            try:
                client.wait_for_workers(1, timeout=WORKER_S)
            except TimeoutError:
                raise RunError(
                    f"no worker joined the scheduler at {scheduler} within {WORKER_S} s"
                ) from None
            yield client


def _check_scheduler(address: str) -> None:
    """Refuse an address where no scheduler answers: a client that fails is never rid of."""
    try:
        with ThreadPoolExecutor(1) as pool:  # a notebook's own thread runs a loop already
            kind = pool.submit(asyncio.run, _kind(address)).result()
    except (OSError, ValueError) as error:
        why = str(error) or f"nothing came within {CONNECT_S} s"
        raise UserError(f"no Dask scheduler answers at '{address}' ({why})") from None
    if kind != "Scheduler":
        raise UserError(f"'{address}' is the address of a Dask {kind.lower()}, not of a scheduler")


async def _kind(address: str) -> str:
    distributed = _distributed()
    secrets = distributed.Security().get_connection_args("client")
    async with distributed.rpc(address, timeout=CONNECT_S, connection_args=secrets) as remote:
        answer = await asyncio.wait_for(remote.identity(), CONNECT_S)
    return str(answer["type"])


def _distributed() -> Any:
    try:
        import distributed
    except ModuleNotFoundError as error:
        raise UserError(
            f"'{error.name}' is missing: the backend dask needs pip install 'dspark-sim[cluster]'"
        ) from None
    return distributed


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep distributed's own log off stderr: what matters is raised."""
    handlers = logging.getLogger("distributed").handlers
    levels = [handler.level for handler in handlers]
    for handler in handlers:
        handler.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for handler, level in zip(handlers, levels, strict=True):
            handler.setLevel(level)
