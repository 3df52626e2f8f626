"""What an engine's steps cost, measured on the engine itself over a grid of its own steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dspark_sim.core import NS_PER_MS
from dspark_sim.model.engine.engine import Engine
from dspark_sim.model.engine.startup import doubling, drafter_kind
from dspark_sim.model.measure import draft_table, rounded, with_terms
from dspark_sim.throughput import EngineProfile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from dspark_sim.model.drafters import Drafter
    from dspark_sim.model.engine.report import StepReport
    from dspark_sim.model.engine.schedule import Limits, Sampling
    from dspark_sim.model.transformer import Transformer
    from dspark_sim.policies import DraftView, SchedulerView

_STEPS = 4


class Cell(NamedTuple):
    """R requests of about `context` tokens verify `length` drafts, beside `chunk` prompt tokens.

    `ragged`: each drafts γ and verifies a length of its own, `length` in the mean.
    """

    requests: int
    context: int
    length: int = 0
    chunk: int = 0
    ragged: bool = False


@dataclass(frozen=True)
class CostGrid:
    """Which steps are measured.

    Attributes
    ----------
    contexts : tuple of float
        Mean tokens of a request in its slot, as a share of `max_model_len`. Requests differ, from
        half of it to one and a half.
    lengths : tuple of int
        Drafts verified by each request; those beyond the drafter's γ are left out.
    ragged : tuple of int
        Mean lengths of batches in which each request verifies a length of its own, as policies
        with confidences have it; an engine that pads its attention takes longer over them.
    chunks : tuple of int
        Prompt tokens computed in the step beside the batch, 0 for none.
    alone : tuple of int
        Prompt tokens of steps in which nobody decodes.
    """

    contexts: tuple[float, ...] = (0.3, 0.6)
    lengths: tuple[int, ...] = (0, 1, 3, 7)
    ragged: tuple[int, ...] = (1, 2, 3, 5)
    chunks: tuple[int, ...] = (0, 32, 96)
    alone: tuple[int, ...] = (16, 32, 64, 96)

    def cells(self, limits: Limits, gamma: int) -> list[Cell]:
        """Return the cells that an engine can hold, those of the same requests in a row."""
        most = limits.max_running(gamma)
        cells = [Cell(0, 0, chunk=chunk) for chunk in self.alone]
        for requests, share in product(doubling(most), self.contexts):
            context = int(share * limits.max_model_len)
            kinds = [(length, False) for length in self.lengths if length <= gamma]
            if requests > 1:
                kinds += [(length, True) for length in self.ragged if length < gamma]
            cells += [
                Cell(requests, context, length, chunk, ragged)
                for (length, ragged), chunk in product(kinds, self.chunks)
                if requests + (chunk > 0) <= most
            ]
        return [cell for cell in cells if cell.chunk < limits.max_model_len]


class Script:
    """A policy that does what its cell says."""

    needs_confidence = True

    def __init__(self) -> None:
        self.cell = Cell(0, 0)

    def draft_lengths(self, view: DraftView) -> NDArray[np.int64]:
        """Return the cell's length, or γ in a ragged one (R,)."""
        length = view.max_draft_len if self.cell.ragged else self.cell.length
        return np.full(len(view.request), length)

    def verify_lengths(self, view: SchedulerView) -> NDArray[np.int64]:
        """Return what was drafted, or quantiles of a geometric spread (R,)."""
        if not self.cell.ragged:
            return view.draft_len
        share = (np.arange(len(view.draft_len)) + 0.5) / len(view.draft_len)
        lengths = np.log1p(-share) / np.log(self.cell.length / (1.0 + self.cell.length))
        return np.minimum(lengths.astype(np.int64), view.draft_len)


class CostBench:
    """An engine whose steps are measured, cell by cell.

    Parameters
    ----------
    target, drafter, limits, sampling
        As of the engine that the costs are for.
    grid : CostGrid, optional

    Attributes
    ----------
    groups : list of list of Cell
        Cells that share their requests, which are put into slots once for all of them.
    """

    def __init__(
        self,
        target: Transformer,
        drafter: Drafter | None,
        limits: Limits,
        sampling: Sampling | None = None,
        grid: CostGrid | None = None,
    ) -> None:
        self._script = Script()
        self._engine = Engine(target, drafter, self._script, limits, sampling=sampling)
        cells = (grid or CostGrid()).cells(limits, self._engine.gamma)
        self.groups = [list(group) for _, group in groupby(cells, key=lambda cell: cell[:2])]

    def measure(self, group: Sequence[Cell]) -> list[dict[str, float]]:
        """Take a few steps of every cell of a group; return one row per step.

        Keys: those of `Cell`, num_requests (prompts included), batch_tokens, kv_tokens_read,
        step_ms, and draft_ms: all that a step does only because it drafts, which is drafting,
        asking the policy, and writing what was committed into the drafter's context.
        """
        requests, context = group[0].requests, group[0].context
        self._script.cell = Cell(requests, context)
        _fill(self._engine, requests, context)
        rows = []
        for cell in group:
            self._script.cell = cell
            rows += [_row(cell, report) for report in _steps(self._engine, cell)]
        for request in list(self._engine.running):
            self._engine.abort(request.id)
        return rows


def _fill(engine: Engine, requests: int, context: int) -> None:
    """Bring requests of about a context into slots."""
    most = engine.limits.max_model_len
    longest = most - (2 + _STEPS) * (1 + engine.gamma)
    for share in np.linspace(0.5, 1.5, requests + 2)[1:-1]:
        count = max(min(int(share * context), longest), 1)
        engine.add([1] * count, most - count)
    while engine.num_waiting or not all(request.prefilled for request in engine.running):
        _step(engine)
    for request in engine.running:
        request.rewind(1)


def _steps(engine: Engine, cell: Cell) -> Iterator[StepReport]:
    """Yield steps of a cell after one that is not counted; then contexts are what they were.

    Within a cell they grow, as in real steps: arrays of ever new sizes cost more than of old ones.
    """
    decoding = [(request, len(request.tokens)) for request in engine.running]
    for number in range(1 + _STEPS):
        if cell.chunk:
            engine.add([1] * cell.chunk, 1)
        report = _step(engine)
        if number > 0:
            yield report
    for request, count in decoding:
        request.rewind(count)


def _step(engine: Engine) -> StepReport:
    report = engine.step()
    assert report is not None
    return report


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

    A prompt chunk is in no draft: in its cells the draft is what it is without one, or what these
    steps took for it where that is less. Means, not medians: what a run of many steps takes is
    their sum, with the slow ones in it. `p10_ms` and `p90_ms` are percentiles of the steps, made
    wide enough to hold the mean, which a single very slow step lifts above most of them.
    """
    cell = list(Cell._fields)
    groups = steps.groupby(cell, sort=False)
    table = groups.mean().round({"kv_tokens_read": 0})
    alone = table["draft_ms"].xs(0, level="chunk").rename("own")
    own = table.join(alone, on=[name for name in cell if name != "chunk"])["own"].fillna(0.0)
    table["draft_ms"] = table["draft_ms"].clip(upper=own)
    table["ms"] = table["step_ms"] - table["draft_ms"]
    low, high = (groups["step_ms"].quantile(share) - table["draft_ms"] for share in (0.1, 0.9))
    table["p10_ms"], table["p90_ms"] = low.clip(upper=table["ms"]), high.clip(lower=table["ms"])
    table["n"] = groups.size()
    counts = ("num_requests", "batch_tokens", "kv_tokens_read", "n")
    return table.drop(columns="step_ms").reset_index().astype(dict.fromkeys(counts, int))


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
