"""What an engine's steps cost, measured on the engine itself over a grid of its own steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from dspark_sim.core import NS_PER_MS
from dspark_sim.model.engine.engine import Engine
from dspark_sim.model.engine.schedule import Limits, Sampling
from dspark_sim.model.engine.startup import doubling, drafter_kind
from dspark_sim.model.measure import draft_table, rounded, with_terms
from dspark_sim.throughput import EngineProfile

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dspark_sim.model.drafters import Drafter
    from dspark_sim.model.engine.report import StepReport
    from dspark_sim.model.transformer import Transformer
    from dspark_sim.policies import SchedulerView

    Progress = Callable[[dict[str, Any]], None]

_STEPS = 4


class Cell(NamedTuple):
    """R requests at about one context that verify `length` drafts, beside `chunk` prompt tokens.

    `ragged`: each drafts γ and verifies a length of its own, `length` in the mean.
    """

    requests: int
    length: int
    context: int
    chunk: int = 0
    ragged: bool = False

    def contexts(self) -> list[int]:
        """Return each request's own context: from half to one and a half, as requests differ."""
        return (self.context * np.linspace(0.5, 1.5, self.requests + 2)[1:-1]).astype(int).tolist()


@dataclass(frozen=True)
class Ragged:
    """A policy that verifies lengths spread geometrically about a mean, blindly."""

    mean: float
    needs_confidence: bool = True

    def verify_lengths(self, view: SchedulerView) -> NDArray[np.int64]:
        """Return the spread's quantiles (R,), at most γ."""
        share = (np.arange(len(view.draft_len)) + 0.5) / len(view.draft_len)
        lengths = np.log1p(-share) / np.log(self.mean / (1.0 + self.mean))
        return np.minimum(lengths.astype(np.int64), view.draft_len)


@dataclass(frozen=True)
class CostGrid:
    """Which steps are measured.

    Attributes
    ----------
    contexts : tuple of int
        Mean tokens of a request in its slot.
    lengths : tuple of int
        Drafts verified by each request; those beyond the drafter's γ are left out.
    chunks : tuple of int
        Prompt tokens computed in the step beside every batch, 0 for none.
    alone : tuple of int
        Prompt tokens of steps in which nobody decodes.
    """

    contexts: tuple[int, ...] = (64, 160)
    lengths: tuple[int, ...] = (0, 1, 3, 7)
    chunks: tuple[int, ...] = (0, 32, 128)
    alone: tuple[int, ...] = (16, 32, 64, 128)

    def cells(self, limits: Limits, gamma: int) -> list[Cell]:
        """Return the cells that an engine can hold."""
        lengths = [length for length in self.lengths if length <= gamma]
        cells = [Cell(0, 0, 0, chunk) for chunk in self.alone]
        cells += [
            Cell(requests, length, context, chunk)
            for requests in doubling(limits.max_running(gamma))
            for length in lengths
            for context in self.contexts
            for chunk in self.chunks
        ]
        cells += [
            Cell(requests, length, context, ragged=True)
            for requests in doubling(limits.max_running(gamma))[1:]
            for length in lengths
            for context in self.contexts
            if 0 < length < gamma
        ]
        most = limits.max_num_batched_tokens
        return [cell for cell in cells if cell.requests * (1 + cell.length) + cell.chunk <= most]


def measure_costs(
    target: Transformer,
    drafter: Drafter | None,
    limits: Limits,
    sampling: Sampling | None = None,
    grid: CostGrid | None = None,
    progress: Progress = lambda row: None,
) -> pd.DataFrame:
    """Take a few steps of every cell; return one row per step.

    Columns: those of `Cell`, num_requests (prompts included), batch_tokens, kv_tokens_read,
    step_ms, and draft_ms: all that a step does only because it drafts, which is drafting, asking
    the policy, and writing what was committed into the drafter's context.
    """
    gamma = 0 if drafter is None else drafter.gamma
    cells = (grid or CostGrid()).cells(limits, gamma)
    rows = []
    for done, cell in enumerate(cells, 1):
        rows += [_row(cell, report) for report in _steps(target, drafter, cell, sampling)]
        progress({"stage": "step costs", "step": done, "steps": len(cells)})
    return pd.DataFrame(rows)


def _steps(
    target: Transformer, drafter: Drafter | None, cell: Cell, sampling: Sampling | None
) -> list[StepReport]:
    """Run one cell and return its steps, the first ones left out."""
    longest = (2 + 2 * _STEPS) * (1 + cell.length)
    contexts = cell.contexts()
    room = max([*contexts, cell.chunk]) + longest
    slots = cell.requests + (cell.chunk > 0)
    limits = Limits(slots, slots * max(room, 1 + cell.length), room)
    policy: str | Ragged = f"fixed:{cell.length}" if cell.length else "none"
    if cell.ragged:
        policy = Ragged(cell.length)
    engine = Engine(target, drafter, policy, limits, sampling=sampling)
    for name, context in enumerate(contexts):
        engine.add([1] * context, longest, name=name)
    engine.step()
    engine.step()
    found = []
    for number in range(_STEPS):
        if cell.chunk:
            engine.add([1] * cell.chunk, 1, name=cell.requests + number)
        report = engine.step()
        assert report is not None
        found.append(report)
    return found


def _row(cell: Cell, report: StepReport) -> dict[str, float]:
    return {
        **cell._asdict(),
        "num_requests": report.num_requests + report.prefill_requests,
        "batch_tokens": report.batch_tokens,
        "kv_tokens_read": report.kv_tokens_read,
        "step_ms": report.step_ns / NS_PER_MS,
        "draft_ms": (report.draft_ns + report.policy_ns + report.extend_ns) / NS_PER_MS,
    }


def cost_table(steps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell: means over its steps, `ms` being all but the draft.

    A prompt chunk is in no draft: in its cells the draft is what it is without it. Means, not
    medians: what a run of many steps takes is their sum, with the slow ones in it.
    """
    cell = list(Cell._fields)
    groups = steps.groupby(cell, sort=False)
    table = groups.mean().round({"kv_tokens_read": 0})
    alone = table["draft_ms"].xs(0, level="chunk").rename("own")
    table = table.join(alone, on=[name for name in cell if name != "chunk"])
    table["draft_ms"] = table["own"].where(table.index.get_level_values("length") > 0).fillna(0.0)
    table["ms"] = table["step_ms"] - table["draft_ms"]
    table["n"] = groups.size()
    for name, share in (("p10_ms", 0.1), ("p90_ms", 0.9)):
        table[name] = groups["step_ms"].quantile(share) - table["draft_ms"]
    counts = ("num_requests", "batch_tokens", "kv_tokens_read", "n")
    return table.drop(columns=["own", "step_ms"]).reset_index().astype(dict.fromkeys(counts, int))


def profile_of_costs(
    steps: pd.DataFrame,
    name: str,
    target: Transformer,
    drafter: Drafter | None,
    limits: Limits,
    provenance: dict[str, str],
) -> EngineProfile:
    """Return measured steps as a profile: verify table, draft table, α(R) and κ."""
    gamma = 0 if drafter is None else drafter.gamma
    kind, costs = drafter_kind(drafter), cost_table(steps)
    drafts = costs[(costs["length"] > 0) & (costs["chunk"] == 0) & ~costs["ragged"]].drop(
        columns="num_requests"
    )
    drafts = drafts.assign(
        kind=f"draft-{kind}", ms=drafts["draft_ms"], draft_len=drafts["length"],
        p10_ms=drafts["draft_ms"], p90_ms=drafts["draft_ms"],
    )  # fmt: skip
    _, draft, draft_kappa = draft_table(drafts, kind, int(drafts["context"].min()))
    keys = ["batch_tokens", "num_requests", "kv_tokens_read"]
    verify = costs[[*keys, "ms", "p10_ms", "p90_ms", "n"]]
    verify = verify.sort_values(keys).drop_duplicates(keys).reset_index(drop=True)
    profile, _ = with_terms(
        EngineProfile(
            name=name,
            engine="dspark-sim",
            model=target.config.name,
            gpu=str(target.embedding.weight.device),
            num_gpus=1,
            dtype=str(target.embedding.weight.dtype).removeprefix("torch."),
            max_num_seqs=limits.max_running(gamma),
            max_num_batched_tokens=limits.max_num_batched_tokens,
            kv_tokens=limits.max_num_seqs * limits.max_model_len,
            lookup="linear",
            draft_lookup="linear",
            draft_context_ms_per_kv_token=draft_kappa,
            drafter=kind,
            verify=verify,
            draft=None if draft is None or draft.empty else draft,
            provenance={"source": "measured by the engine on itself", **provenance},
        )
    )
    return rounded(profile)
