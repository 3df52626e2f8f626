"""V5: a real engine on a machine at hand, run for real and simulated, request by request.

A trial's folder holds the engine's step costs, its acceptance, its requests and what it did
(`dspark-sim trial`). Costs come from steps of a grid, never from the runs that are predicted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dspark_sim.acceptance.recorded import read_recording
from dspark_sim.config import Scenario
from dspark_sim.core import UserError
from dspark_sim.simulator import Inputs, simulate
from dspark_sim.study.validate.case import Check, Point, Settings, Validation, max_error
from dspark_sim.study.validate.published import PUBLISHED
from dspark_sim.throughput import load_profile
from dspark_sim.trace import Trace, load_trace

if TYPE_CHECKING:
    from dspark_sim.acceptance import RecordedAcceptance
    from dspark_sim.throughput import EngineProfile

QUANTITIES = ("output_tok_s", "tok_s_user", "ttft_p50_ms", "step_ms", "verify_budget")
JUDGED = ("output_tok_s", "tok_s_user")
_MEDIAN, _LARGEST, _SPREADS = 5.0, 12.0, 1.5


@dataclass(frozen=True)
class Trial:
    """What `dspark-sim trial` wrote: inputs of a simulation, and runs of the engine itself."""

    about: dict[str, Any]
    profile: EngineProfile
    believed: EngineProfile
    recording: RecordedAcceptance
    trace: Trace
    runs: pd.DataFrame

    @classmethod
    def read(cls, folder: str | Path) -> Trial:
        """Read a trial's folder."""
        place = Path(folder)
        try:
            about = json.loads((place / "trial.json").read_text(encoding="utf-8"))
            runs = pd.read_csv(place / "runs.csv")
        except (OSError, ValueError) as error:
            raise UserError(f"{folder}: is no folder of a trial ({error})") from None
        return cls(
            about,
            load_profile(place / "profile"),
            load_profile(place / "believed"),
            read_recording(place / "acceptance.parquet"),
            load_trace(place / "requests.jsonl"),
            runs,
        )

    def simulated(self, policy: str, concurrency: int, requests: int) -> dict[str, Any]:
        """Return the summary of one run's simulation: its own requests, each with its answer."""
        rows = self.trace.requests.iloc[:requests].reset_index(drop=True)
        answers = {number: f"{number:03d}" for number in range(requests)}
        scenario = Scenario(
            trace=self.trace.name,
            profile=self.profile.name,
            acceptance=self.recording.name,
            policy=policy,
            num_speculative_tokens=self.recording.draft_len,
            concurrency=concurrency,
            requests=requests,
            extend=True,
            record="summary",
        )
        inputs = Inputs(
            trace=Trace(rows, name=self.trace.name, origin=self.trace.origin),
            profile=self.profile,
            acceptance=replace(self.recording, mapping=answers),
            believed=self.believed,
        )
        return simulate(scenario, inputs).summary


def run(settings: Settings) -> Validation:
    """Simulate every run of a trial and compare: yours, or the shipped one."""
    shipped = PUBLISHED / ("trial-tiny" if settings.quick else "trial-smollm2-135m")
    trial = Trial.read(settings.trial or shipped)
    points = compare(trial)
    judged = [point for point in points if point.quantity in JUDGED]
    spread = spread_pct(trial.runs)
    limit = max(_MEDIAN, _SPREADS * spread)
    median = float(np.median([abs(point.error_pct) for point in judged]))
    return Validation(
        "V5",
        _TITLE,
        fitted="step costs, to steps of the engine's own grid; nothing to the runs",
        by_hand=(_described(trial),),
        points=tuple(points),
        checks=(
            Check("throughput and tok/s/user: median error", median, limit),
            Check("throughput and tok/s/user: largest error", max_error(judged) or 0.0, _LARGEST),
        ),
        notes=(f"repeated real runs differ by {spread:.1f} % (median of largest over smallest)",),
    )


_TITLE = "The real engine of this project, real against simulated"


def compare(trial: Trial) -> list[Point]:
    """Return a point per quantity, policy and concurrency; the real value is the repeats' mean."""
    points = []
    cells = trial.runs[["policy", "concurrency"]].drop_duplicates()
    for policy, concurrency in zip(cells["policy"], cells["concurrency"].tolist(), strict=True):
        rows = trial.runs.query("policy == @policy and concurrency == @concurrency")
        found = trial.simulated(policy, concurrency, int(rows["requests"].iloc[0]))
        points += [
            Point(policy, name, concurrency, float(rows[name].mean()), found[name])
            for name in QUANTITIES
        ]
    return points


def spread_pct(runs: pd.DataFrame) -> float:
    """Return 100 · (largest − smallest) / mean of repeated runs, the median over all of them."""
    cells = runs.groupby(["policy", "concurrency"])[list(JUDGED)]
    return float(np.median(100.0 * (cells.max() - cells.min()) / cells.mean()))


def _described(trial: Trial) -> str:
    a = trial.about
    return (
        f"{a['target']} with {a['drafter']} at temperature {a['temperature']:g} on "
        f"{a['machine']['name']}, {a['machine'].get('threads', 1)} threads; {a['repeats']} "
        f"repetitions, {a['requests'][1]} requests per stream and at least {a['requests'][0]}"
    )
