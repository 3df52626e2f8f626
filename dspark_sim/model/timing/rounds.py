"""Rounds of timings within a budget: prepare what fits, then time all of it in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dspark_sim.model.timing.clock import Spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dspark_sim.model.timing.bench import Bench, Cell
    from dspark_sim.model.timing.clock import Clock
    from dspark_sim.model.timing.grid import Point

Progress = Callable[[dict[str, Any]], None]
FEWEST = 3


def silent(row: dict[str, Any]) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Budget:
    """A span of time that is used up as it passes."""

    start: float
    seconds: float
    now: Callable[[], float] = time.perf_counter

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self.now() - self.start

    @property
    def left(self) -> float:
        """Seconds until the end; negative after it."""
        return self.seconds - self.spent


def prepare(
    bench: Bench, wanted: Sequence[Point], budget: Budget, progress: Progress = silent
) -> tuple[list[Cell], list[Point]]:
    """Warm points up in order; leave out what would not fit into the budget, or into memory.

    At most half of the time goes into this; each prepared point is promised a few rounds of what
    is left.
    """
    cells: list[Cell] = []
    left_out: list[Point] = []
    promised, half = 0.0, budget.left / 2
    for index, point in enumerate(wanted):
        if cells and (budget.left < half or budget.left < promised):
            return cells, left_out + list(wanted[index:])
        cell = _cell(bench, point)
        cost = FEWEST * cell.warm_ms / 1e3 if cell else 0.0
        if cell is None or (cells and budget.left < promised + cost):
            left_out.append(point)
        else:
            cells.append(cell)
            promised += cost
        progress({"stage": "warming up", "step": index + 1, "steps": len(wanted)})
    return cells, left_out


def _cell(bench: Bench, point: Point) -> Cell | None:
    try:
        return bench.cell(point)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None


def time_rounds(
    cells: list[Cell],
    clock: Clock,
    rounds: int,
    budget: Budget,
    seed: int = 0,
    progress: Progress = silent,
) -> list[float]:
    """Time all cells round after round, each in a new random order, until the budget is spent.

    Returns the timings of the reference, the first cell, taken three times a round.
    """
    rng = np.random.default_rng(seed)
    reference: list[float] = []
    often = max(1, len(cells) // 3)
    for turn in range(rounds):
        for place, index in enumerate(rng.permutation(len(cells))):
            if budget.left <= 0:
                return reference
            if place % often == 0:
                reference.append(cells[0].time(clock))
            cells[index].samples.append(cells[index].time(clock))
        progress({"stage": "timing", "step": turn + 1, "steps": rounds})
    return reference


def drift(reference: list[float]) -> dict[str, float]:
    """Return how the reference's last third compares with its first, and its spread; or nothing."""
    third = len(reference) // 3
    if not third:
        return {}
    first, last = np.median(reference[:third]), np.median(reference[-third:])
    return {"drift": float(last / first - 1.0), "spread": Spread.of(reference).width}
