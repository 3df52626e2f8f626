"""Tuning one parameter of a policy over loads, with as few simulations as decide it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from dspark_sim.core import UserError, expand_range
from dspark_sim.study.inputs import SharedInputs
from dspark_sim.study.race import Race
from dspark_sim.study.run import Run
from dspark_sim.study.setting import WHOLE, exported
from dspark_sim.study.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dspark_sim.config import Scenario
    from dspark_sim.study.objective import Objective
    from dspark_sim.study.run import CarryOut


@dataclass(frozen=True)
class Tuned:
    """The answer of `tune`.

    Attributes
    ----------
    table : DataFrame
        One row per load, or one for all: the `best` value with its `policy`, from `low` to `high`
        the values that are not surely worse, the `objective` at the best and its 95 % interval,
        the simulations made and those of the whole grid.
    values : DataFrame
        One row per load and value that was looked at: `n_seeds`, mean `objective`,
        `objective_ci95`, `loss_pct` against the best (paired by seed) and `still_in`.
    objective : Objective
    setting : dict
        From `exported`.
    """

    table: pd.DataFrame
    values: pd.DataFrame
    objective: Objective
    setting: dict[str, Any]


def parameter_values(spec: str) -> dict[float, str]:
    """Return the policies that a range in one argument stands for, by value.

    >>> parameter_values("vllm:lag=1..3:1")
    {1.0: 'vllm:lag=1', 2.0: 'vllm:lag=2', 3.0: 'vllm:lag=3'}
    """
    name, _, rest = spec.strip().partition(":")
    parts = rest.split(",")
    ranges = [place for place, part in enumerate(parts) if ".." in part]
    if len(ranges) != 1:
        raise UserError(
            f"policy '{spec}' must have a range in one argument, as threshold:0.1..0.9:0.1 "
            "or vllm:lag=1..3:1"
        )
    key, equals, text = parts[ranges[0]].rpartition("=")
    found = {}
    for value in expand_range(text, f"policy '{spec}'"):
        parts[ranges[0]] = f"{key}{equals}{value:g}"
        found[value] = f"{name}:{','.join(parts)}"
    return found


def tune(
    scenario: Scenario,
    spec: str,
    objective: Objective,
    concurrency: Sequence[int] = (),
    request_rate: Sequence[float] = (),
    *,
    seeds: int = 8,
    tolerance: float = 0.005,
    exhaustive: bool = False,
    jobs: int = 1,
) -> Tuned:
    """Find the best value of a policy's parameter at each load, or for all loads together.

    Parameters
    ----------
    scenario
        What all runs share.
    spec
        A policy with a range in one argument.
    objective
        `Objective.whole` tells whether there is one answer or one per load.
    concurrency, request_rate
        The loads, of one kind.
    seeds
        Most per value; policies share them, so that differences are paired.
    tolerance
        A loss that does not matter, as a share of the best.
    exhaustive
        Run every value with every seed instead of racing.
    jobs
        Worker processes; the answer does not depend on it.
    """
    if bool(concurrency) == bool(request_rate):
        raise UserError("tuning needs concurrencies or request rates, one of the two")
    if objective.name == "goodput" and not scenario.goodput:
        raise UserError("objective goodput needs an SLO: --goodput 'ttft:500 tpot:30'")
    key = "concurrency" if concurrency else "request_rate"
    loads = list(dict.fromkeys(concurrency or request_rate))
    policies = parameter_values(spec)
    inputs = SharedInputs(scenario, list(policies.values()))
    lines = {WHOLE: loads} if objective.whole else {f"{load:g}": [load] for load in loads}
    races = {}
    with ExitStack() as stack:
        carry_out = stack.enter_context(Workers("loky", jobs).open(inputs, None))
        for name, own in lines.items():
            track = _Track(scenario, list(policies.values()), key, own, objective, carry_out)
            races[name] = Race(len(policies), track.measure, seeds, tolerance)
            if exhaustive:
                races[name].run_all()
            else:
                races[name].run()
    table = pd.DataFrame(
        [_row(name, races[name], policies, len(lines[name]), seeds) for name in lines]
    )
    values = pd.concat([_values(name, races[name], policies) for name in lines], ignore_index=True)
    best = dict(zip(table["load"], table["policy"], strict=True))
    setting = exported(best, scenario.num_speculative_tokens, scenario.profile)
    return Tuned(table, values, objective, setting)


@dataclass(frozen=True)
class _Track:
    """Measures values at some loads that belong together."""

    scenario: Scenario
    policies: Sequence[str]
    key: str
    loads: Sequence[float]
    objective: Objective
    carry_out: CarryOut

    def measure(self, wanted: Sequence[tuple[int, int]]) -> list[float]:
        """Return the objective of each (value's index, seed)."""
        shared = self.scenario.model_dump() | {
            "record": "requests", "concurrency": None, "request_rate": None, "rate_scale": 1.0,
        }  # fmt: skip
        runs = [
            Run(
                number,
                type(self.scenario).check(
                    {
                        **shared,
                        "policy": self.policies[place],
                        self.key: load,
                        "seed": self.scenario.seed + seed,
                    }
                ),
                None,
            )
            for number, (place, seed, load) in enumerate(
                (place, seed, load) for place, seed in wanted for load in self.loads
            )
        ]
        found = dict(self.carry_out(runs))
        step = len(self.loads)
        return [
            self.objective.value([found[number] for number in range(start, start + step)])
            for start in range(0, len(runs), step)
        ]


def _row(
    name: str, race: Race, policies: dict[float, str], loads: int, seeds: int
) -> dict[str, Any]:
    grid = list(policies)
    best, (low, high) = race.best(), race.interval()
    mean, half = race.mean(best)
    return {
        "load": name, "best": grid[best], "low": grid[low], "high": grid[high],
        "policy": policies[grid[best]], "objective": mean, "objective_ci95": half,
        "simulations": race.taken * loads, "grid_simulations": len(grid) * seeds * loads,
    }  # fmt: skip


def _values(name: str, race: Race, policies: dict[float, str]) -> pd.DataFrame:
    grid, best, inside = list(policies), race.best(), set(race.still_in())
    top = race.mean(best)[0]
    rows = []
    for place in sorted(race.samples):
        mean, half = race.mean(place)
        lost = race.loss(place, best)[0]
        rows.append(
            {
                "load": name, "value": grid[place], "policy": policies[grid[place]],
                "n_seeds": len(race.samples[place]), "objective": mean, "objective_ci95": half,
                "loss_pct": 100 * lost / top if top else float("nan"),
                "still_in": place in inside,
            }
        )  # fmt: skip
    return pd.DataFrame(rows)
