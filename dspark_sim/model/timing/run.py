"""The measurement as a whole: machine, model, rounds, and all of it as one plain dictionary."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dspark_sim.core import RunError
from dspark_sim.model.timing.attention import usable_kernels
from dspark_sim.model.timing.bench import Bench
from dspark_sim.model.timing.clock import Clock, Spread
from dspark_sim.model.timing.grid import points
from dspark_sim.model.timing.machine import ceilings, describe, find_device, free_bytes, gpu_state
from dspark_sim.model.timing.network import Weights
from dspark_sim.model.timing.rounds import Budget, drift, prepare, silent, time_rounds
from dspark_sim.model.timing.sizes import model_sizes

if TYPE_CHECKING:
    from dspark_sim.model.timing.bench import Cell
    from dspark_sim.model.timing.grid import Scope
    from dspark_sim.model.timing.rounds import Progress
    from dspark_sim.model.timing.settings import Settings

VERSION = 1


@torch.inference_mode()
def measure(settings: Settings, progress: Progress = silent) -> dict[str, Any]:
    """Time a model's forward on this machine; return every point with how it was found.

    Every point is warmed up, then all are timed in turn in a new random order, round after round,
    with inputs that differ from the last ones; a point's time is the median of its rounds. A
    reference point is timed three times a round: its drift tells of clocks and neighbours.

    Parameters
    ----------
    settings : Settings
    progress : called with `stage`, `step` and `steps`

    Raises
    ------
    UserError
        Unknown model or device, or a model that does not fit into memory.
    """
    began, budget = time.gmtime(), Budget(time.perf_counter(), settings.filled().max_seconds)
    settings, device = settings.filled(), find_device(settings.device)
    clock, sizes = Clock(device), model_sizes(settings.model)
    limits = ceilings(clock, settings.number, settings.quick)
    kernels, said = usable_kernels(device, settings.number)
    scope, capacity = settings.scope(free_bytes(device))
    bench = new_bench(settings, scope, clock, kernels)
    states = [gpu_state()]
    cells, left_out = prepare(bench, points(scope), budget, progress)
    reference = time_rounds(cells, clock, scope.repeats, budget, settings.seed, progress)
    states.append(gpu_state())
    found = [_timed(cell, limits) for cell in cells if cell.samples]
    left_out += [cell.point for cell in cells if not cell.samples]
    if settings.layers < sizes.num_layers:
        scale(found, sizes.num_layers / settings.layers)
    return {
        "format": "dspark-sim timings",
        "version": VERSION,
        "model": asdict(sizes),
        "settings": {**asdict(settings), "contexts": list(settings.contexts)},
        "machine": {**describe(device), **limits},
        "gpu_state": [state for state in states if state],
        "kernels": said,
        "kv_tokens": capacity,
        "reference": {**asdict(cells[0].point), **drift(reference), "samples_ms": reference},
        "points": found,
        "left_out": [asdict(point) for point in left_out],
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", began),
        "seconds": round(budget.spent, 1),
    }


def new_bench(settings: Settings, scope: Scope, clock: Clock, kernels: list[str]) -> Bench:
    """Build the model and its drafters, with caches for the largest point."""
    chance = torch.Generator(clock.device).manual_seed(settings.seed)
    weights = Weights(clock.device, settings.number, chance)
    slots = max(point.kv_positions() for point in points(scope))
    return Bench(
        model_sizes(settings.model), settings.layers, slots, weights, clock, kernels,
        1 + settings.draft_len, settings.seed,
    )  # fmt: skip


def _timed(cell: Cell, limits: dict[str, float]) -> dict[str, Any]:
    samples = [round(sample, 5) for sample in cell.samples]
    return {**cell.row(limits), **asdict(Spread.of(cell.samples)), "samples_ms": samples}


def scale(found: list[dict[str, Any]], factor: float) -> None:
    """Multiply the layers' part of every pass up; LM head and sampling stay as they were timed."""
    heads = sorted((row["tokens"], row["ms"]) for row in found if row["kind"] == "head")
    if not heads:
        raise RunError("too little time: a run with fewer layers must time the LM head apart")
    sizes, ms = zip(*heads, strict=True)
    for row in found:
        if row["kind"] in ("verify", "mixed", "prefill"):
            with_logits = row["tokens"] - row["prefill"] + (row["prefill"] > 0)
            head = float(np.interp(with_logits, sizes, ms))
            for key in ("ms", "p10_ms", "p90_ms"):
                row[key] = head + max(0.0, row[key] - head) * factor
