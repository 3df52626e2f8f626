"""TensorRT-LLM's exact (G, V) cost table, schema version 2: whole steps by captured graph."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.core import UserError
from dspark_sim.throughput.additive import fit_additive
from dspark_sim.throughput.formats.build import Tables, build_profile
from dspark_sim.throughput.formats.sglang import WHOLE_STEP
from dspark_sim.throughput.formats.source import JsonObject
from dspark_sim.throughput.formats.tensorrt import MINIMUM_PREDICTED_GAIN
from dspark_sim.throughput.formats.terms import USUAL_DRAFT_LEN, draft_len_of, step_terms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from dspark_sim.throughput.formats.build import ImportOptions
    from dspark_sim.throughput.profile import EngineProfile

USUAL_GRAPHS = (16, 32, 64, 128)
CELLS_PER_GRAPH, CELLS = 4, 32
"""How many compact cells the engine accepts for one G, and in all."""


def read_exact(path: Path, text: str, options: ImportOptions) -> EngineProfile:
    """Read the cells T(G, V): G requests as captured, V verified tokens, V = 0 the full block.

    The engine never interpolates. Here a batch is padded up to the next cell in both: θ(V) is read
    as captured and α(G) is a staircase, and every cell is answered exactly where the cells allow
    it (`fit_additive`).
    """
    table = JsonObject.parse(path.name, text)
    if table.required("schema_version") != 2:
        raise UserError(
            f"{table.where('schema_version')} must be 2, got {table.values['schema_version']!r}"
        )
    fingerprint = table.child("engine_fingerprint")
    block = fingerprint.whole("max_draft_len")
    cells = _cells(table, block)
    form = fit_additive(cells)
    worst = float(form.residuals["error"].abs().max())
    last = int(cells["batch_tokens"].max())
    alpha = _staircase(form.alpha)
    gain = table.number("minimum_predicted_gain", MINIMUM_PREDICTED_GAIN)
    return build_profile(
        path,
        options,
        "TensorRT-LLM exact cost table (G, V)",
        Tables(verify=cells, requests=alpha if alpha["ms"].any() else None),
        {
            **WHOLE_STEP,
            "gpu": str(fingerprint.values.get("gpu", "not stated")),
            "lookup": "captured",
            "max_num_seqs": int(cells["num_requests"].max()),
            "max_num_batched_tokens": last,
        },
        {
            "method": "Whole steps by captured graph: G requests, V verified tokens; V = 0 is the "
            f"full block of {block} drafts. A batch costs what the next cell up does; split into "
            f"alpha(G) + theta(V), which misses a cell by at most {worst:.2%}.",
            "ranks": "G and V are rank-local: this profile is one of "
            f"{fingerprint.whole('gpu_count', 1)} data-parallel GPUs.",
            "minimum_predicted_gain": f"{gain:g}: the planner's guard, not part of a step's cost",
        },
    )


def _cells(table: JsonObject, block: int) -> pd.DataFrame:
    """Return one row per cell: num_requests, batch_tokens, ms; V = 0 counts as the full block."""
    tables = table.child("cost_tables")
    rows: dict[tuple[int, int], float] = {}
    for key in tables.values:
        if not key.isdecimal() or int(key) < 1:
            raise UserError(f"{tables.where(key)} must be a number of requests, got '{key}'")
        graph, full = int(key), int(key) * (block + 1)
        cell = tables.child(key)
        budgets, ms = cell.costs("step_time_ms", "token_counts", above=True)
        if budgets[0] != 0:
            raise UserError(f"{cell.where('token_counts')} must begin with 0, the full block")
        for index, budget in enumerate(budgets[1:], start=1):
            if not graph <= budget <= full:
                raise UserError(
                    f"{cell.where('token_counts')}[{index}] must lie between {graph} and {full}, "
                    f"got {budget}"
                )
            rows[int(budget), graph] = float(ms[index])
        rows[full, graph] = float(ms[0])
    if not rows:
        raise UserError(f"{table.where('cost_tables')} must not be empty")
    ordered = [(tokens, graph, rows[tokens, graph]) for tokens, graph in sorted(rows)]
    return pd.DataFrame(ordered, columns=["batch_tokens", "num_requests", "ms"])


def _staircase(alpha: pd.DataFrame) -> pd.DataFrame:
    """Return α so that interpolation answers the next captured number of requests."""
    graphs, ms = alpha["num_requests"].to_numpy(), alpha["ms"].to_numpy()
    starts = np.append(1, graphs[:-1] + 1)
    sizes, first = np.unique(np.column_stack([starts, graphs]).ravel(), return_index=True)
    return pd.DataFrame({"num_requests": sizes, "ms": np.repeat(ms, 2)[first]})


def exact_table(
    profile: EngineProfile,
    draft_len: int | None,
    context: int,
    graphs: Sequence[int] | None = None,
    fingerprint: JsonObject | None = None,
) -> dict[str, Any]:
    """Return a profile as an exact table: for every G the full block and up to 4 smaller V.

    Parameters
    ----------
    profile : EngineProfile
        A profile whose verify table states its requests gives its own cells; of any other the
        cells are evaluated.
    draft_len, context : see `step_terms`
    graphs : sequence of int, optional
        The captured numbers of requests; by default those that the profile was measured at, else
        16, 32, 64, 128, as far as the profile reaches.
    fingerprint : JsonObject, optional
        The running engine's fingerprint. The engine accepts a table with no other; without it the
        profile's identity stands there, with hashes of the profile.
    """
    terms = step_terms(profile, draft_len, context)
    block = draft_len_of(profile, draft_len) or USUAL_DRAFT_LEN
    last_request, last_token = int(terms.requests[-1]), int(terms.tokens[-1])
    if fingerprint is not None:
        block, graphs = _told_by(fingerprint)
    if graphs is None:
        graphs = _usual_graphs(profile, min(last_request, last_token // (block + 1)))
    for graph in graphs:
        reached = terms.requests[0] <= graph <= last_request
        if not reached or not terms.tokens[0] <= graph * (block + 1) <= last_token:
            raise UserError(
                f"profile '{profile.name}' does not reach {graph} requests with {block} drafts "
                f"each: it covers {terms.requests[0]} to {last_request} requests "
                f"and {terms.tokens[0]} to {last_token} tokens"
            )
    tables = {}
    share = min(CELLS_PER_GRAPH, CELLS // max(len(graphs), 1))
    for graph in sorted(set(graphs)):
        budgets = _budgets(profile, graph, block, share)
        budgets = [size for size in budgets if size >= terms.tokens[0]]
        at = np.array([graph * (block + 1), *budgets])
        ms = terms.step_ms(np.full(len(at), graph), at)
        tables[graph] = {"token_counts": [0, *budgets], "step_time_ms": ms.tolist()}
    return _payload(profile, tables, block, fingerprint)


def _told_by(fingerprint: JsonObject) -> tuple[int, list[int]]:
    """Return the block's length and the captured numbers of requests of a running engine."""
    graphs = fingerprint.numbers("rank_local_graph_batch_sizes", least=1)
    return fingerprint.whole("max_draft_len"), [int(graph) for graph in graphs]


def _usual_graphs(profile: EngineProfile, reach: int) -> list[int]:
    """Return the profile's own numbers of requests, or the usual ones; 8 at most."""
    own = profile.verify.get("num_requests", pd.Series(dtype=int)).unique()
    inside = [int(graph) for graph in sorted(own) if 0 < graph <= reach]
    usual = [graph for graph in USUAL_GRAPHS if graph <= reach]
    return inside[-CELLS // CELLS_PER_GRAPH :] or usual or [max(reach, 1)]


def _budgets(profile: EngineProfile, graph: int, block: int, most: int) -> list[int]:
    """Return up to `most` V between G and the full block, at sizes that the profile knows."""
    low, full = graph, graph * (block + 1)
    rows = profile.verify
    if "num_requests" in rows and (rows["num_requests"] == graph).any():
        rows = rows[rows["num_requests"] == graph]
    sizes = rows["batch_tokens"].to_numpy()
    known = np.unique(sizes[(sizes >= low) & (sizes < full)])
    if len(known) <= most and "num_requests" in profile.verify:
        return [int(size) for size in known]
    wanted = low + np.ceil(np.arange(1, most + 1) / (most + 1) * block * graph)
    if profile.lookup == "captured" and len(known):
        wanted = known[np.abs(known[:, None] - wanted).argmin(axis=0)]
    return [int(size) for size in np.unique(wanted) if low <= size < full]


def _payload(
    profile: EngineProfile,
    tables: Mapping[int, dict[str, Any]],
    block: int,
    fingerprint: JsonObject | None,
) -> dict[str, Any]:
    digest = hashlib.sha256("".join(t.to_csv() for t in [profile.verify]).encode()).hexdigest()
    graphs = list(tables)
    mark = (
        dict(fingerprint.values) if fingerprint is not None else _stand_in(profile, graphs, block)
    )
    canonical = json.dumps(mark, sort_keys=True, separators=(",", ":")).encode()
    return {
        "schema_version": 2,
        "minimum_predicted_gain": MINIMUM_PREDICTED_GAIN,
        "cost_tables": {str(graph): table for graph, table in tables.items()},
        "engine_fingerprint": mark,
        "engine_fingerprint_sha256": hashlib.sha256(canonical).hexdigest(),
        "measurements": [
            {
                "rank_local_graph_batch_size": graph,
                "rank_local_verifier_budget": budget,
                "step_time_ms": ms,
                "source_result_sha256": digest,
            }
            for graph, table in tables.items()
            for budget, ms in zip(table["token_counts"], table["step_time_ms"], strict=True)
        ],
    }


def _stand_in(profile: EngineProfile, graphs: Sequence[int], block: int) -> dict[str, Any]:
    """Return what the profile knows, in the place of a running engine's fingerprint."""
    nothing = hashlib.sha256(b"").hexdigest()
    return {
        "global_graph_batch_sizes": [graph * profile.num_gpus for graph in graphs],
        "gpu": profile.gpu,
        "gpu_count": profile.num_gpus,
        "gpu_snapshot_sha256": nothing,
        "max_draft_len": block,
        "rank_local_graph_batch_sizes": list(graphs),
        "runtime_snapshot": profile.engine,
        "source_diff_sha256": nothing,
        "source_head": profile.name,
        "topology": "not stated",
    }
