"""A sweep that looks like a real one, from a closed formula: no simulator, milliseconds."""

from __future__ import annotations

import numpy as np
import pandas as pd

CONDITIONAL = np.array([0.735, 0.738, 0.740, 0.744, 0.758, 0.766, 0.770])
SURVIVAL = np.cumprod(CONDITIONAL)
POLICIES = (
    "none", "fixed:1", "fixed:3", "fixed:5", "fixed:7", "threshold:0.6", "dspark", "dspark-async",
    "vllm", "oracle",
)  # fmt: skip
CONCURRENCY = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GPUS = 4


def step_ms(batch_tokens):
    """Staircase of captured sizes, then the eager cliff at 1,025 tokens."""
    captured = np.ceil(np.asarray(batch_tokens, dtype=float) / 16) * 16
    graph = 5.0 + 0.45 * np.sqrt(captured)
    return np.where(captured <= 1024, graph, 60.0 + 0.02 * captured)


def _tokens(length, skill):
    """Expected accepted tokens of `length` verified; skill > 1 verifies the better ones first."""
    whole = np.concatenate([[0.0], np.cumsum(SURVIVAL)])
    return np.interp(length, np.arange(8), whole) * (1 + (skill - 1) * (1 - length / 7))


def _length(policy, concurrency):
    name, _, argument = policy.partition(":")
    if name == "none":
        return 0.0, 1.0
    if name == "fixed":
        return float(argument), 1.0
    if name == "threshold":
        return 3.4, 1.18
    skill = {"dspark": 1.1, "dspark-async": 1.17, "vllm": 1.15, "oracle": 1.45}[name]
    lengths = np.linspace(0, 7, 71)
    gain = concurrency * (1 + _tokens(lengths, skill))
    rate = gain / (step_ms(concurrency * (1 + lengths)) + 0.9 + 0.017 * concurrency)
    return float(lengths[np.argmax(rate)]) * (0.8 if name == "dspark" else 1.0), skill


def _run(policy, concurrency, seed, luck):
    length, skill = _length(policy, concurrency)
    draft = 0.0 if policy == "none" else 0.9 + 0.017 * concurrency
    icl = float(step_ms(concurrency * (1 + length))) + draft
    accepted = min(_tokens(length, skill), length) * luck.normal(1, 0.012)
    tpot = icl / (1 + accepted)
    row = {
        "policy": policy, "concurrency": concurrency, "request_rate": np.nan, "seed": seed,
        "tok_s_gpu": 1000 * concurrency / tpot / GPUS * 0.985, "tok_s_user": 1000 / tpot,
        "output_tok_s": 1000 * concurrency / tpot * 0.985, "acceptance_length": 1 + accepted,
        "verify_budget": 1 + length, "draft_budget": 0.0 if policy == "none" else 7.0,
        "wasted_fraction": max(length - accepted, 0.0) / (1 + length),
        "batch_tokens": concurrency * (1 + length),
        "eager_step_fraction": float(concurrency * (1 + length) > 1024),
    }  # fmt: skip
    for metric, middle, tail in (
        ("ttft", 25 + 3 * icl, 1.8), ("tpot", tpot, 1.25), ("icl", icl, 1.12),
        ("e2el", 129 * tpot, 3.0),
    ):  # fmt: skip
        shares = (("mean", 1.05), ("p50", 1.0), ("p90", tail), ("p99", tail**1.6))
        row |= {f"{metric}_{name}_ms": middle * share for name, share in shares}
    return row | {"run": f"runs/{policy}-c{concurrency}-s{seed}"}


def make_sweep(policies=POLICIES, concurrency=CONCURRENCY, seeds=3):
    """One row per run: seeds share their luck between policies, as the simulator's do."""
    rows = [
        _run(policy, load, seed, np.random.default_rng([seed, load]))
        for policy in policies
        for load in concurrency
        for seed in range(seeds)
    ]
    return pd.DataFrame(rows)
