"""Sweeps: policies × loads × seeds, in parallel, resumable, ending in one tidy table."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from joblib import Parallel, delayed

from dspark_sim.acceptance import load_acceptance
from dspark_sim.core import UserError, shipped_dir, whole_file
from dspark_sim.policies import load_policy, policy_draft_len, policy_file
from dspark_sim.simulator import simulate
from dspark_sim.simulator.collect import profile_hash
from dspark_sim.simulator.result import to_json
from dspark_sim.simulator.setup import believed_temperatures
from dspark_sim.study.progress import progress_bar
from dspark_sim.throughput import load_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dspark_sim.config import Scenario

FILE_ENDINGS = ("jsonl", "parquet")
METRICS = (
    "tok_s_gpu",
    "tok_s_user",
    "tok_s_user_mean",
    "output_tok_s",
    "acceptance_length",
    "acceptance_rate",
    "verify_budget",
    "draft_budget",
    "wasted_fraction",
    "batch_tokens",
    "step_ms",
    "eager_step_fraction",
    "extended_step_fraction",
    "utilisation",
    *(f"{name}_{key}_ms" for name in ("ttft", "tpot", "icl", "e2el")
      for key in ("mean", "p50", "p90", "p99")),
    "duration",
    "request_throughput",
    "output_throughput",
    "request_goodput",
    "preemptions",
    "requests_measured",
    "window",
)  # fmt: skip


def sweep(
    scenario: Scenario,
    policies: Sequence[str],
    concurrency: Sequence[int] = (),
    request_rate: Sequence[float] = (),
    seeds: Sequence[int] = (0,),
    *,
    jobs: int = 1,
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
        Worker processes; the table does not depend on it.
    out
        Folder for `sweep.csv` and one folder per run. A run that is there already, of the same
        scenario and inputs, is not run again, so an interrupted sweep resumes.
    progress
        Show a progress bar on stderr.
    """
    if concurrency and request_rate:
        raise UserError("give either concurrencies or request rates, not both")
    gamma = scenario.num_speculative_tokens
    source = load_acceptance(scenario.acceptance, gamma)
    for spec in policies:
        draft_len = policy_draft_len(load_policy(spec, gamma), gamma)
        source.check_draft_len(draft_len)
        believed_temperatures(scenario.belief, source, draft_len)
    for what, given in (("policy", policies), ("seed", seeds)):
        if not given:
            raise UserError(f"a sweep needs at least one {what}")
    loads: list[dict[str, Any]] = [{"concurrency": c} for c in dict.fromkeys(concurrency)]
    loads += [{"request_rate": rate} for rate in dict.fromkeys(request_rate)]
    shared = scenario.model_dump()
    if loads:
        shared |= {"concurrency": None, "request_rate": None, "rate_scale": 1.0}
    runs = [
        type(scenario).check(
            {**shared, "record_steps": False, "policy": policy, **load, "seed": seed}
        )
        for policy in dict.fromkeys(policies)
        for load in loads or [{}]
        for seed in dict.fromkeys(seeds)
    ]
    summaries = run_all(runs, jobs=jobs, out=out, progress=progress)
    table = pd.DataFrame([_row(run, summary) for run, summary in zip(runs, summaries, strict=True)])
    if out is not None:
        with whole_file(Path(out) / "sweep.csv") as aside:
            table.to_csv(aside, index=False)
    return table


def read_sweep(path: str | Path) -> pd.DataFrame:
    """Read the table of a sweep, given its folder or its sweep.csv."""
    file = Path(path) / "sweep.csv" if Path(path).is_dir() else Path(path)
    try:
        return pd.read_csv(file)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise UserError(f"{file}: cannot be read as the table of a sweep ({error})") from None


def run_all(
    runs: Sequence[Scenario],
    *,
    jobs: int = 1,
    out: str | Path | None = None,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Simulate scenarios in parallel; return their summaries in order, each with its run folder."""
    if jobs == 0 or jobs < -1:
        raise UserError(f"jobs must be 1 or more, or -1 for all cores, got {jobs}")
    if not runs:
        return []
    inputs = _fingerprint(runs[0])
    folders = [None if out is None else _folder(Path(out), run, inputs) for run in runs]
    found = {
        index: summary
        for index, folder in enumerate(folders)
        if folder is not None and (summary := _finished(folder)) is not None
    }
    missing = [index for index in range(len(runs)) if index not in found]
    with progress_bar(len(runs), done=len(found), shown=progress) as tick:
        if missing:  # the first run compiles the kernels, which the workers then find on disk
            index, summary = _run(missing[0], runs[missing[0]], folders[missing[0]])
            found[index] = summary
            tick()
        tasks = (delayed(_run)(index, runs[index], folders[index]) for index in missing[1:])
        pool = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
        for index, summary in pool(tasks):
            found[index] = summary
            tick()
    return [found[index] for index in range(len(runs))]


def _run(index: int, scenario: Scenario, folder: Path | None) -> tuple[int, dict[str, Any]]:
    result = simulate(scenario)
    if folder is None:
        return index, result.summary
    result.save(folder)
    return index, {**json.loads(to_json(result.summary)), "run": _relative(folder)}


def _finished(folder: Path) -> dict[str, Any] | None:
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(summary, dict) or not summary.keys() >= set(METRICS):
        return None
    return {**summary, "run": _relative(folder)}


def _folder(out: Path, run: Scenario, inputs: str) -> Path:
    """Return the folder of a run, named by what it is and by a hash of all it depends on."""
    load = f"c{run.concurrency}" if run.concurrency else f"r{run.request_rate or 0:g}"
    policy = re.sub(r"[^A-Za-z0-9.=-]+", "_", run.policy)
    code = policy_file(run.policy)
    identity = run.model_dump_json() + inputs + (_file_hash(code) if code else "")
    key = hashlib.sha256(identity.encode()).hexdigest()[:10]
    return out / "runs" / f"{policy}_{load}_s{run.seed}_{key}"


def _relative(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def _fingerprint(run: Scenario) -> str:
    """Return a hash of the program's version and of all files that the runs of a sweep read."""
    import dspark_sim

    parts = [dspark_sim.__version__, profile_hash(load_profile(run.profile, run.profile_set))]
    if run.belief.profile is not None:
        parts.append(profile_hash(load_profile(run.belief.profile)))
    for spec in filter(None, (run.trace, run.acceptance, run.belief.temperatures)):
        words = [spec, *filter(None, re.split("[:,=]", spec))]
        shipped = [f"{word}.{end}" for word in words for end in FILE_ENDINGS]
        parts += [_file_hash(shipped_dir("traces") / name) for name in shipped]
        parts += [_file_hash(Path(word)) for word in words]
    return " ".join(parts)


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _row(run: Scenario, summary: dict[str, Any]) -> dict[str, Any]:
    identity = {
        "policy": run.policy,
        "concurrency": run.concurrency if run.concurrency is not None else math.nan,
        "request_rate": run.request_rate if run.request_rate is not None else math.nan,
        "seed": run.seed,
    }
    values = {key: math.nan if summary[key] is None else summary[key] for key in METRICS}
    return {**identity, **values, "run": summary.get("run", "")}
