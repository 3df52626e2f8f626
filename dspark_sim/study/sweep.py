"""Sweeps: policies × loads × seeds, in parallel, resumable, ending in one tidy table."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dspark_sim.core import UserError, whole_file
from dspark_sim.study.folder import (
    METRICS,
    TABLE,
    SweepFolder,
    exclusive,
    finished,
    input_hashes,
    name_of,
)
from dspark_sim.study.inputs import SharedInputs, trace_name
from dspark_sim.study.progress import progress_bar
from dspark_sim.study.refine import next_concurrency
from dspark_sim.study.run import Run
from dspark_sim.study.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dspark_sim.config import Scenario
    from dspark_sim.study.run import CarryOut, Summary


def sweep(
    scenario: Scenario,
    policies: Sequence[str],
    concurrency: Sequence[int] = (),
    request_rate: Sequence[float] = (),
    seeds: Sequence[int] = (0,),
    *,
    jobs: int = 1,
    backend: str = "loky",
    scheduler: str | None = None,
    refine: int = 0,
    out: str | Path | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    """Simulate every policy at every load with every seed; return one row per run.

    Parameters
    ----------
    scenario
        What all runs share.
    policies
        `NAME:ARGS`, each once.
    concurrency, request_rate
        Loads: closed loops, or open loops in requests per second. Neither: the scenario's own.
    seeds
        The same seeds for every policy, so that policies are compared on the same luck.
    jobs
        Worker processes on this computer; the table does not depend on it.
    backend, scheduler
        "dask" and the address of a Dask scheduler carry out the runs on a cluster (extra
        `cluster`); the table is the same.
    refine
        Add up to this many concurrencies, one after the other, where the curves bend most: see
        `next_concurrency`. The table is then in order of concurrency.
    out
        Folder for `sweep.csv` and one folder per run. A run that is there already, of the same
        scenario and inputs, is not run again, so an interrupted sweep resumes.
    progress
        Show a progress bar on stderr.

    Raises
    ------
    UserError
        An argument or an input cannot be used, or another sweep is writing to `out`.
    RunError
        Workers or their scheduler were lost; runs that had finished are kept in `out`.
    """
    workers = Workers(backend, jobs, scheduler)
    plan = _Plan(scenario, tuple(dict.fromkeys(policies)), tuple(dict.fromkeys(seeds)))
    loads = _loads(concurrency, request_rate, refine)
    inputs = SharedInputs(scenario, plan.policies)
    runs = plan.runs(loads)
    inputs.check(runs[0])
    place = None if out is None else Path(out).absolute()
    with ExitStack() as stack:
        if place is not None:
            stack.enter_context(exclusive(place))
        hashes = input_hashes(runs[0], *inputs.profiles)
        known = None if place is None else SweepFolder(place, hashes)
        total = len(runs) + refine * len(runs) // len(loads)
        move_bar = stack.enter_context(progress_bar(total, shown=progress))
        start = cache(lambda: stack.enter_context(workers.open(inputs, place)))
        ledger = _Ledger(known, start, move_bar)
        table = ledger.table(runs)
        for _ in range(refine):
            added = next_concurrency(table)
            if added is None:
                break
            loads = sorted([*loads, {"concurrency": added}], key=lambda load: load["concurrency"])
            table = ledger.table(plan.runs(loads))
        if place is not None:
            with whole_file(place / TABLE) as aside:
                table.to_csv(aside, index=False)
    return table


def read_sweep(path: str | Path) -> pd.DataFrame:
    """Read the table of a sweep, given its folder or its sweep.csv."""
    file = Path(path) / TABLE if Path(path).is_dir() else Path(path)
    try:
        return pd.read_csv(file)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise UserError(f"{file}: cannot be read as the table of a sweep ({error})") from None


@dataclass(frozen=True)
class _Plan:
    """Policies and seeds that every load is run with."""

    scenario: Scenario
    policies: tuple[str, ...]
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        for what, given in (("policy", self.policies), ("seed", self.seeds)):
            if not given:
                raise UserError(f"a sweep needs at least one {what}")

    def runs(self, loads: Sequence[dict[str, Any]]) -> list[Scenario]:
        """Return the runs by policy, load and seed."""
        shared = self.scenario.model_dump()
        shared["record"] = "summary" if self.scenario.record == "summary" else "requests"
        if loads != [{}]:
            shared |= {"concurrency": None, "request_rate": None, "rate_scale": 1.0}
        return [
            type(self.scenario).check({**shared, "policy": policy, **load, "seed": seed})
            for policy in self.policies
            for load in loads
            for seed in self.seeds
        ]


@dataclass(frozen=True)
class _Ledger:
    """The summaries of a sweep's runs: those that are there, and those that are still to come."""

    folder: SweepFolder | None
    start: Callable[[], CarryOut]  # the workers, where a run is missing
    move_bar: Callable[[int, bool], None]
    known: dict[str, Summary] = field(default_factory=dict)  # by scenario

    def table(self, scenarios: Sequence[Scenario]) -> pd.DataFrame:
        """Carry out what is missing, runs with the same requests together; return one row each."""
        keys = [scenario.model_dump_json() for scenario in scenarios]
        folders = [None if self.folder is None else self.folder.of(run) for run in scenarios]
        there = 0
        for run, key, place in zip(scenarios, keys, folders, strict=True):
            if (
                key not in self.known
                and place is not None
                and (summary := finished(place, run.record))
            ):
                self.known[key] = summary
                there += 1
        self.move_bar(there, True)
        missing = [
            Run(number, scenarios[number], folders[number])
            for number, key in enumerate(keys)
            if key not in self.known
        ]
        order: dict[str, int] = {}
        missing.sort(key=lambda run: order.setdefault(trace_name(run.scenario), len(order)))
        for number, summary in self.start()(missing) if missing else ():
            self.known[keys[number]] = summary
            self.move_bar(1, False)
        rows = zip(scenarios, keys, folders, strict=True)
        return pd.DataFrame([_row(run, self.known[key], place) for run, key, place in rows])


def _loads(
    concurrency: Sequence[int], request_rate: Sequence[float], refine: int
) -> list[dict[str, Any]]:
    """Return the scenario keys of every load; one empty dict for the scenario's own."""
    if concurrency and request_rate:
        raise UserError("give either concurrencies or request rates, not both")
    loads: list[dict[str, Any]] = [{"concurrency": c} for c in dict.fromkeys(concurrency)]
    loads += [{"request_rate": rate} for rate in dict.fromkeys(request_rate)]
    if refine < 0:
        raise UserError(f"refine must be 0 or more, got {refine}")
    if refine and (request_rate or len(loads) < 2):
        raise UserError("refine adds concurrencies between others: give at least two of them")
    return sorted(loads, key=lambda load: load["concurrency"]) if refine else loads or [{}]


def _row(run: Scenario, summary: Summary, place: Path | None) -> dict[str, Any]:
    identity = {
        "policy": run.policy,
        "concurrency": run.concurrency if run.concurrency is not None else math.nan,
        "request_rate": run.request_rate if run.request_rate is not None else math.nan,
        "seed": run.seed,
    }
    values = {key: math.nan if summary[key] is None else summary[key] for key in METRICS}
    return {**identity, **values, "run": "" if place is None else name_of(place)}
