"""Several replicas behind a router: who serves which request, and what they did together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import simpy

from dspark_sim.simulator import state as s
from dspark_sim.simulator.admission import issue, issue_all
from dspark_sim.simulator.engine import check_finished

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from dspark_sim.simulator.engine import Replica

    Ints = NDArray[np.int64]

_STREAM = 0x726F75746572
"""Keeps the router's luck apart from that of arrivals and acceptance."""


def run_fleet(replicas: Sequence[Replica], router: str, arrival_ns: Ints, seed: int) -> Ints:
    """Run all replicas from the first arrival to the last token; return who served what.

    Parameters
    ----------
    replicas
        Engines that are alike, each with a state that holds all requests and has issued none.
    router : "round-robin", "random" or "least-loaded"
        In turn; by a generator seeded with `seed`; to the replica with the fewest requests in it,
        waiting or running, at the moment of arrival, the first of equals. The first two are known
        beforehand, so that replicas take their steps without looking at each other.

    Returns
    -------
    int64 (requests,)
        The number of each request's replica.
    """
    env = simpy.Environment(initial_time=0)
    served = np.arange(len(arrival_ns)) % len(replicas)
    if router == "random":
        luck = np.random.default_rng([seed, _STREAM])
        served = luck.integers(len(replicas), size=len(arrival_ns))
    if router == "least-loaded":
        env.process(_route(env, replicas, arrival_ns, served))
    else:
        for number, replica in enumerate(replicas):
            mine = np.flatnonzero(served == number)
            issue_all(replica.engine, replica.state, mine, arrival_ns)
            env.process(replica.serve(env))
    env.run()
    return served


def _route(
    env: simpy.Environment, replicas: Sequence[Replica], arrival_ns: Ints, served: Ints
) -> Generator[simpy.Event, None, None]:
    """Give each request to the least loaded replica, all being brought up to its arrival first."""
    held = [np.zeros(0, dtype=np.int64) for _ in replicas]
    for request, arrival in enumerate(arrival_ns.tolist()):
        if arrival > env.now:
            yield env.timeout(arrival - env.now)
        for number, replica in enumerate(replicas):
            replica.catch_up(arrival)
            finish = replica.state.requests[s.FINISH, held[number]]
            held[number] = held[number][(finish < 0) | (finish > arrival)]
        chosen = min(range(len(replicas)), key=lambda number: len(held[number]))
        issue(replicas[chosen].engine, replicas[chosen].state, request, arrival)
        held[chosen] = np.append(held[chosen], request)
        served[request] = chosen
    for replica in replicas:
        env.process(replica.serve(env))


def merged(replicas: Sequence[Replica], served: Ints) -> s.State:
    """Return what the replicas did as one state: each request by its own, the counters summed."""
    states = [replica.state for replica in replicas]
    first = states[0]
    if len(states) == 1:
        check_finished(first)
        return first
    requests = np.empty_like(first.requests)
    for number, state in enumerate(states):
        requests[:, served == number] = state.requests[:, served == number]
    clock = first.clock.copy()
    clock[s.NOW] = max(int(state.clock[s.NOW]) for state in states)
    clock[s.NUM_GAPS] = sum(int(state.clock[s.NUM_GAPS]) for state in states)
    clock[s.NUM_STEPS] = sum(int(state.clock[s.NUM_STEPS]) for state in states)
    whole = first._replace(
        requests=requests,
        clock=clock,
        counters=np.sum([state.counters for state in states], axis=0),
        steps=np.concatenate([state.steps[: state.clock[s.NUM_STEPS]] for state in states]),
        gaps=np.concatenate([state.gaps[: state.clock[s.NUM_GAPS]] for state in states]),
    )
    check_finished(whole)
    return whole


def replica_of_steps(replicas: Sequence[Replica]) -> Ints:
    """Return the number of each step's replica, in the order of `merged`'s steps."""
    counts = [int(replica.state.clock[s.NUM_STEPS]) for replica in replicas]
    return np.repeat(np.arange(len(replicas)), counts)
