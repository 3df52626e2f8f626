"""From names to a service: models, beliefs, a warm engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.model.engine import Engine, Limits, Sampling, startup_profile
from dspark_sim.model.engine.decision import needs_costs
from dspark_sim.model.server.app import Service
from dspark_sim.model.weights import chat_format, load_drafter, load_target
from dspark_sim.throughput import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LONGEST = 1024


def build_service(
    target: str,
    drafter: str | None = None,
    policy: str | None = None,
    *,
    limits: tuple[int, int, int | None] = (16, 512, None),
    temperature: float = 1.0,
    profile: str | None = None,
    weights: Path | None = None,
    seed: int = 0,
    note: Callable[[str], None] = lambda text: None,
) -> Service:
    """Load a pair of models and return a service that is ready to run.

    Parameters
    ----------
    target, drafter
        Names of weights; without a drafter every step is plain decoding.
    policy
        `vllm` by default, `none` without a drafter.
    limits
        max_num_seqs, max_num_batched_tokens and max_model_len, the last by default the target's
        own, 1,024 at most.
    temperature, seed
        Of requests that name none.
    profile
        Step costs that the policy believes. A policy that looks at costs gets those measured now
        if none is named.
    weights
        Folder of weights, by default the shipped ones.
    note
        Told what takes long.
    """
    sampling = Sampling(temperature)
    model, tokenizer = load_target(target, weights)
    proposer = None if drafter is None else load_drafter(drafter, model, weights)
    rule = policy or ("none" if proposer is None else "vllm")
    longest = limits[2] or min(model.config.max_position, _LONGEST)
    bounds = Limits(limits[0], limits[1], longest)
    costs = None if profile is None else load_profile(profile)
    gamma = 0 if proposer is None else proposer.gamma
    if costs is None and needs_costs(rule, gamma):
        note("measuring what this engine's steps cost, for the policy to know …")
        costs = startup_profile(model, proposer, bounds, sampling)
    engine = Engine(model, proposer, rule, bounds, sampling=sampling, seed=seed, profile=costs)
    engine.warm_up()
    return Service(engine, tokenizer, chat_format(target), target)
