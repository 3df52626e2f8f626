"""Try the real engine on this machine: its step costs, its acceptance, and what it does by policy.

The folder that comes of it holds all that a simulation of the same runs needs, and what really
happened: `profile/` and `believed/`, `acceptance.parquet`, `requests.jsonl`, `runs.csv` and
`trial.json`. Step costs are measured between the runs, which come in random order, so that a
machine that drifts reaches all alike; policies believe what was measured before the first run.
"""

from __future__ import annotations

import json
import platform
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from dspark_sim.acceptance import write_recording
from dspark_sim.core import NS_PER_MS, NS_PER_S, UserError, whole_file
from dspark_sim.model.corpus import DOMAINS, load_documents, split
from dspark_sim.model.engine import Engine, Limits, Sampling, run_closed_loop
from dspark_sim.model.engine.costs import CostBench, CostGrid, profile_of_costs
from dspark_sim.model.engine.decision import checked_policy
from dspark_sim.model.generate import Decoding
from dspark_sim.model.record import Response, record, recording_metadata
from dspark_sim.model.responses import answer, prompts
from dspark_sim.model.timing.machine import describe
from dspark_sim.model.weights import chat_format, load_drafter, load_target
from dspark_sim.throughput import write_profile
from dspark_sim.trace import Trace, write_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dspark_sim.model.drafters import Drafter
    from dspark_sim.model.engine import EngineRun
    from dspark_sim.model.transformer import Transformer
    from dspark_sim.throughput import EngineProfile

    Progress = Callable[[dict[str, Any]], None]

POLICIES = ("none", "fixed:3", "fixed:7", "threshold:0.6", "dspark", "vllm")


@dataclass(frozen=True)
class TrialPlan:
    """What is tried.

    Attributes
    ----------
    target, drafter : str
        Names of weights.
    policies : tuple of str
    concurrency : tuple of int
        Closed loops; the engine has as many slots as the largest.
    requests : tuple of (int, int)
        At least so many per run, and so many per stream of its closed loop.
    output : tuple of (int, int)
        Shortest and longest response, drawn evenly, in tokens; a request never ends before.
    temperature : float
    repeats : int
        Runs of each policy and concurrency, each with luck of its own (without effect at
        temperature 0, where the same tokens are answered).
    seed : int
    corpora : Path, optional
        Folder of prompts; without it they come from what packages carry.
    threads : int
        Of torch. One leaves a core to the rest of the machine.
    """

    target: str = "tiny"
    drafter: str = "dspark-markov"
    policies: tuple[str, ...] = POLICIES
    concurrency: tuple[int, ...] = (1, 4, 8, 16)
    requests: tuple[int, int] = (24, 6)
    output: tuple[int, int] = (24, 64)
    temperature: float = 0.0
    repeats: int = 3
    seed: int = 0
    corpora: Path | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("repeats", "threads"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if min(self.requests) < 1:
            raise UserError(f"requests must be 1 or more, got {min(self.requests)}")

    def count(self, concurrency: int) -> int:
        """Return how many requests a closed loop gets."""
        least, each = self.requests
        return max(least, each * concurrency)


@dataclass(frozen=True)
class _Pair:
    """The models, the requests put to them, and the engine's limits."""

    target: Transformer
    drafter: Drafter
    responses: list[Response]
    lengths: list[int]
    limits: Limits
    sampling: Sampling


def run_trial(
    folder: str | Path,
    plan: TrialPlan | None = None,
    *,
    weights: Path | None = None,
    grid: CostGrid | None = None,
    progress: Progress = lambda row: None,
) -> pd.DataFrame:
    """Measure, record, run; write the folder, whole or not at all; return its table of runs.

    Parameters
    ----------
    folder
        Must not exist.
    weights
        Folder of weights, by default the shipped ones.

    Raises
    ------
    UserError
        Unknown weights or policies, too few prompts, or a folder that is there already.
    """
    plan = plan or TrialPlan()
    if Path(folder).exists():
        raise UserError(f"{folder}: exists already, a trial needs a new folder")
    with _threads(plan.threads), whole_file(folder) as aside:
        pair, frame, about = _prepare(plan, weights, progress)
        aside.mkdir()
        bench = CostBench(pair.target, pair.drafter, pair.limits, pair.sampling, grid)
        steps = list[dict[str, float]]()
        for done, group in enumerate(bench.groups, 1):
            steps += bench.measure(group)
            progress({"stage": "step costs", "step": done, "steps": len(bench.groups)})
        believed = _profile(plan, pair, steps)
        write_profile(believed, aside / "believed")
        rows = list[dict[str, Any]]()
        planned, groups = _shuffled_runs(plan), cycle(bench.groups)
        for cell in planned:
            rows.append(_run(plan, pair, *cell, believed))
            steps += bench.measure(next(groups))
            progress({"stage": "real runs", "step": len(rows), "steps": len(planned)})
        write_profile(_profile(plan, pair, steps), aside / "profile")
        place = {policy: number for number, policy in enumerate(plan.policies)}
        rows.sort(key=lambda row: (row["concurrency"], place[row["policy"]], row["repeat"]))
        runs = pd.DataFrame(rows)
        runs.round(6).to_csv(aside / "runs.csv", index=False)
        write_recording(aside / "acceptance.parquet", frame, about)
        write_trace(_trace(pair), aside / "requests.jsonl")
        told = {**asdict(plan), "corpora": None, "limits": asdict(pair.limits)}
        text = json.dumps({**told, "machine": _machine(pair)}, indent=2)
        (aside / "trial.json").write_text(text + "\n", encoding="utf-8")
    return runs


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _prepare(
    plan: TrialPlan, weights: Path | None, progress: Progress
) -> tuple[_Pair, pd.DataFrame, dict[str, Any]]:
    """Load the pair, let the target answer held-out prompts, record the drafter on the answers."""
    target, tokenizer = load_target(plan.target, weights)
    drafter = load_drafter(plan.drafter, target, weights)
    for policy in plan.policies:
        checked_policy(policy, drafter.gamma)
    wanted = max(plan.count(c) for c in plan.concurrency)
    each = -(-wanted // len(DOMAINS))
    held_out = split(load_documents(plan.corpora))[1]
    asked = prompts(held_out, tokenizer, chat_format(plan.target), each)
    if len(asked) < each * len(DOMAINS):
        raise UserError(f"{wanted} prompts are needed, {len(asked)} are held out: ask for fewer")
    order = np.random.default_rng(plan.seed).permutation(len(asked))[:wanted]
    asked = [asked[place] for place in order]
    c = Decoding(plan.output[1] + drafter.gamma - 1, plan.temperature, seed=plan.seed)
    with torch.inference_mode():
        answers = answer(target, asked, c)
    responses = [
        Response(f"{number:03d}", a.domain, a.prompt, a.answer) for number, a in enumerate(answers)
    ]
    frame = record(
        target,
        {plan.drafter: drafter},
        responses,
        c,
        progress=lambda n: progress({"stage": "recorded", "step": n, "steps": len(responses)}),
    )[plan.drafter]
    draw = np.random.default_rng([plan.seed, 1])
    lengths = draw.integers(plan.output[0], plan.output[1] + 1, len(responses)).tolist()
    longest = max(len(r.prompt) for r in responses) + plan.output[1]
    slots = max(plan.concurrency)
    limits = Limits(slots, max(512, slots * (1 + drafter.gamma)), longest)
    pair = _Pair(target, drafter, responses, lengths, limits, Sampling(plan.temperature))
    return pair, frame, recording_metadata(target, drafter, plan.drafter, c)


def _profile(plan: TrialPlan, pair: _Pair, steps: Sequence[dict[str, float]]) -> EngineProfile:
    machine = _machine(pair)
    about = {
        "method": f"means over {len(steps)} of the engine's own steps",
        "machine": f"{machine['name']}, {machine.get('threads')} threads, torch {machine['torch']}",
    }
    return profile_of_costs(
        pd.DataFrame(steps),
        f"{plan.target}-engine",
        pair.target,
        pair.drafter,
        pair.limits,
        about,
    )


def _shuffled_runs(plan: TrialPlan) -> list[tuple[int, int, str]]:
    """Return (repeat, concurrency, policy) of all runs; those of a repetition in any order."""
    draw = np.random.default_rng([plan.seed, 2])
    cells = list(product(plan.concurrency, plan.policies))
    return [
        (repeat, *cells[place])
        for repeat in range(plan.repeats)
        for place in draw.permutation(len(cells))
    ]


def _run(
    plan: TrialPlan,
    pair: _Pair,
    repeat: int,
    concurrency: int,
    policy: str,
    believed: EngineProfile,
) -> dict[str, Any]:
    """Run a policy at a concurrency once."""
    engine = Engine(
        pair.target, pair.drafter, policy, pair.limits, sampling=pair.sampling,
        seed=plan.seed + repeat, profile=believed,
    )  # fmt: skip
    engine.warm_up()
    count = plan.count(concurrency)
    asked = [response.prompt for response in pair.responses[:count]]
    run = run_closed_loop(engine, asked, concurrency, pair.lengths[:count])
    about = {"policy": policy, "concurrency": concurrency, "repeat": repeat}
    return {**about, "requests": count, **run_measures(run)}


def run_measures(run: EngineRun) -> dict[str, float]:
    """Return what a run achieved in its measured window, as `simulator.metrics` defines it.

    Besides, the mean time of a step and of its parts in ms.
    """
    steps, requests = run.steps, run.requests
    ends = steps["start_ns"] + steps["step_ns"]
    first, last = run.window or (0, int(ends.max()))
    inside = steps[(ends > first) & (ends <= last)]
    finish = requests["finish_s"] * NS_PER_S
    measured = requests[(finish.round() > first) & (finish.round() <= last)]
    decoding = int(inside["num_requests"].sum())
    parts = ("draft", "verify", "sample", "extend", "policy", "host")
    return {
        "output_tok_s": inside["output_tokens"].sum() / ((last - first) / NS_PER_S),
        "tok_s_user": 1e3 / float(measured["tpot_ms"].median()),
        "ttft_p50_ms": float(measured["ttft_ms"].median()),
        "ttft_mean_ms": float(measured["ttft_ms"].mean()),
        "step_ms": inside["step_ns"].mean() / NS_PER_MS,
        "verify_budget": 1.0 + int(inside["verify_tokens"].sum()) / max(decoding, 1),
        "acceptance_length": 1.0 + int(inside["accepted_tokens"].sum()) / max(decoding, 1),
        "steps": len(inside),
        **{f"{part}_ms": inside[f"{part}_ns"].mean() / NS_PER_MS for part in parts},
    }


def _trace(pair: _Pair) -> Trace:
    frame = pd.DataFrame(
        {
            "arrival_s": 0.0,
            "prompt_tokens": [len(r.prompt) for r in pair.responses],
            "output_tokens": pair.lengths,
            "category": [r.category for r in pair.responses],
        }
    )
    return Trace(frame, name="trial", origin="held-out prompts")


def _machine(pair: _Pair) -> dict[str, Any]:
    device = pair.target.embedding.weight.device
    about = describe(device)
    return {**about, "platform": platform.platform(), "dspark-sim": version("dspark-sim")}
