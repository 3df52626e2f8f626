"""What the runs of a sweep read: each input is loaded and prepared once, then shared by the runs.

Runs read three pieces: the profiles, the acceptance source as the kernels' arrays (one piece per
draft length), and the requests. A piece has a name; a worker that has a piece of that name already
does not need it again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sim.acceptance import AcceptanceSource, load_acceptance
from dspark_sim.acceptance.kernels import AcceptanceTables
from dspark_sim.policies import load_policy, policy_draft_len
from dspark_sim.simulator.setup import believed_temperatures
from dspark_sim.simulator.simulate import load_scenario_trace
from dspark_sim.throughput import load_profile
from dspark_sim.trace import load_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dspark_sim.acceptance.source import Member
    from dspark_sim.config import Scenario
    from dspark_sim.throughput import EngineProfile
    from dspark_sim.trace import Trace


@dataclass(frozen=True, kw_only=True)
class BoundAcceptance(AcceptanceSource):
    """A source as arrays for one draft length and belief, without requests until it is assigned."""

    name: str
    origin: str
    temperatures: tuple[float, ...] | None
    applied: tuple[float, ...] | None  # by which the confidences are divided
    arrays: AcceptanceTables = field(repr=False)

    @property
    def max_draft_len(self) -> int:
        """The draft length that it is bound to, in draft tokens."""
        return int(self.arrays.confidence_scale.shape[1])

    def members(self) -> list[Member]:
        """Refuse: only the arrays are left."""
        raise TypeError(f"acceptance '{self.name}' is bound to a run")

    def assigned(self, members: NDArray[np.int32]) -> BoundAcceptance:
        """Return the source for requests that belong to these members, shape (n,)."""
        plain: Any = map(np.asarray, self.arrays)  # mapped from a file or not
        free = np.full(len(members), -1, dtype=np.int64)
        arrays = AcceptanceTables(*plain)._replace(member=members, first_response=free)
        return replace(self, arrays=arrays)

    def tables(
        self,
        categories: Sequence[str],
        max_draft_len: int,
        confidence_scale: float = 1.0,
        confidence_bias: float = 0.0,
        temperatures: Sequence[float] | None = None,
    ) -> AcceptanceTables:
        """Return the arrays; the requests and the draft length must be those it is bound to."""
        if (len(categories), max(max_draft_len, 1)) != (
            len(self.arrays.member), self.max_draft_len,
        ):  # fmt: skip
            raise ValueError(f"acceptance '{self.name}' is bound to another run")
        return self.arrays


@dataclass(frozen=True)
class Profiles:
    """What steps cost, and what a policy believes they cost where that is another profile."""

    true: EngineProfile
    believed: EngineProfile | None


@dataclass(frozen=True)
class SharedTrace:
    """The requests of some runs, and the acceptance member of each, shape (n,)."""

    trace: Trace
    members: NDArray[np.int32]


class SharedInputs:
    """The inputs of a sweep, whose runs differ in policy, load and seed.

    Raises
    ------
    UserError
        An input cannot be read, or cannot be used with one of the policies.
    """

    def __init__(self, scenario: Scenario, policies: Sequence[str]) -> None:
        gamma = scenario.num_speculative_tokens
        self.belief = scenario.belief
        self._source = load_acceptance(scenario.acceptance, gamma)
        self._draft_len: dict[str, int] = {}
        self._temperatures: dict[int, tuple[float, ...] | None] = {}
        self._member: dict[str, int] = {}
        for policy in policies:
            length = policy_draft_len(load_policy(policy, gamma), gamma)
            self._source.check_draft_len(length)
            self._draft_len[policy] = length
            self._temperatures[length] = believed_temperatures(
                scenario.belief, self._source, length
            )
        believed = scenario.belief.profile
        self._profiles = Profiles(
            load_profile(scenario.profile, scenario.profile_set),
            None if believed is None else load_profile(believed),
        )
        synthetic = scenario.trace.startswith("synth:")
        self._stored = None if synthetic else load_trace(scenario.trace)
        self._bound: dict[int, BoundAcceptance] = {}
        self._latest: tuple[str, SharedTrace] | None = None

    @property
    def profiles(self) -> tuple[EngineProfile, EngineProfile | None]:
        """What steps cost, and what the policies believe, where that is another profile."""
        return self._profiles.true, self._profiles.believed

    def pieces(self, run: Scenario) -> dict[str, Callable[[], Any]]:
        """Return what a run reads, in the order of `Run.carry_out`: names, and what makes each.

        Of the traces only the latest is kept.
        """
        length = self._draft_len[run.policy]
        return {
            "profiles": lambda: self._profiles,
            f"acceptance-{length}": partial(self._acceptance, length),
            trace_name(run): partial(self._trace, run),
        }

    def check(self, run: Scenario) -> None:
        """Read the requests of a run, so that a mistake in them is told before anything runs."""
        self._trace(run)

    def _acceptance(self, draft_len: int) -> BoundAcceptance:
        if draft_len in self._bound:
            return self._bound[draft_len]
        belief, source = self.belief, self._source
        arrays = source.tables(
            [],
            draft_len,
            belief.confidence_scale,
            belief.confidence_bias,
            self._temperatures[draft_len],
        )
        bound = BoundAcceptance(
            name=source.name,
            origin=source.origin,
            temperatures=source.temperatures,
            applied=self._temperatures[draft_len],
            arrays=arrays,
        )
        return self._bound.setdefault(draft_len, bound)

    def _trace(self, run: Scenario) -> SharedTrace:
        name = trace_name(run)
        if self._latest is not None and self._latest[0] == name:
            return self._latest[1]
        trace = load_scenario_trace(run, self._stored)
        categories = trace.requests["category"]
        for category in categories.unique():
            if category not in self._member:
                self._member[category] = int(self._source.assign([category])[0])
        members = np.array([self._member[category] for category in categories], dtype=np.int32)
        self._latest = name, SharedTrace(trace, members)
        return self._latest[1]


def trace_name(run: Scenario) -> str:
    """Return a name that runs share if and only if they have the same requests.

    The policy never matters; the seed does where something is drawn, the concurrency where it sets
    the number of requests.
    """
    changes: dict[str, Any] = {"policy": "none"}
    if not run.trace.startswith("synth:") and run.request_rate is None:
        changes["seed"] = 0
    if run.requests is not None and run.concurrency is not None:
        changes["concurrency"] = 1
    identity = run.model_copy(update=changes).model_dump_json()
    return f"trace-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
