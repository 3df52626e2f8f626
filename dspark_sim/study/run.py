"""One run of a sweep, wherever it is carried out: its summary, and its files."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_sim.core import UserError
from dspark_sim.simulator.result import to_json
from dspark_sim.simulator.simulate import Inputs, simulate
from dspark_sim.study.folder import finished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dspark_sim.config import Scenario
    from dspark_sim.simulator.result import Result
    from dspark_sim.study.inputs import BoundAcceptance, Profiles, SharedTrace

    Summary = dict[str, Any]
    CarryOut = Callable[[Sequence["Run"]], Iterator[tuple[int, Summary]]]
    """From runs to their numbers and summaries, in the order in which they end."""


@dataclass(frozen=True)
class Run:
    """A run: its number among those of the caller, what to simulate, where its result is kept.

    The other arguments of its methods are what `SharedInputs.pieces` makes.
    """

    number: int
    scenario: Scenario
    folder: Path | None

    def carry_out(
        self, profiles: Profiles, acceptance: BoundAcceptance, shared: SharedTrace
    ) -> Summary:
        """Simulate, keep the result if it has a folder, and return its summary."""
        result = self.simulate(profiles, acceptance, shared)
        if self.folder is None:
            return result.summary
        try:
            result.save(self.folder)
        except (OSError, UserError):  # a worker of a killed sweep may have been a moment earlier
            if finished(self.folder, self.scenario.record) is None:
                raise
        return as_read(to_json(result.summary))

    def simulate(
        self, profiles: Profiles, acceptance: BoundAcceptance, shared: SharedTrace
    ) -> Result:
        """Return the result: the same bytes as those of `simulate(scenario)`."""
        inputs = Inputs(
            trace=shared.trace,
            profile=profiles.true,
            believed=profiles.believed,
            acceptance=acceptance.assigned(shared.members),
            temperatures=acceptance.applied,
        )
        return simulate(self.scenario, inputs)


def as_files(result: Result) -> dict[str, bytes]:
    """Return the files of a result by name."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        result.save(folder)
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def as_read(summary: str | bytes) -> Summary:
    """Return a summary as it stands in its file."""
    return dict(json.loads(summary))
