"""Is a policy lossless? Its output's exact distribution, enumerated in tiny worlds."""

from __future__ import annotations

from copy import deepcopy
from functools import reduce
from itertools import product
from math import nan
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.core import UserError
from dspark_sim.policies import KernelPolicy, load_policy, policy_draft_len
from dspark_sim.study.worlds import World, appendix_a, default_worlds, in_setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dspark_sim.policies import Policy, SchedulerView
    from dspark_sim.study.worlds import Tables

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Block = tuple[int, ...]

TOLERANCE = 1e-12
BUILT_IN = (
    "none", "fixed:1", "fixed:2", "k-table:1-1:2,2-9:1", "k-table:1-9:1,adaptive=yes",
    "threshold:0.5", "threshold:0.5,on=survival", "threshold:0.5,on=rejection", "threshold:auto",
    "dspark", "dspark-async:lag=0", "dspark-async:lag=1", "dspark-async", "dspark-async:lag=3",
    "vllm:lag=0", "vllm", "vllm:lag=2", "vllm:lag=3", "vllm:min=1,guard=0.01,fill=tier",
    "sglang", "sglang:lag=0", "trt", "trt:lag=1", "atom", "dcut", "dcut:lag=1", "ratio:0.5",
    "tetris:1,extra=1", "knee", "smartspec", "dsd-online", "sgl-ema", "gate-off:1", "sticky-off",
    "vllm:conf=online-sts", "threshold:0.5,conf=platt", "dspark-async:conf=ema",
    "forecast", "oracle",
)  # fmt: skip


def check_lossless(
    policies: Sequence[str] | None = None,
    worlds: Sequence[World] | None = None,
    seed: int = 0,
    setting: str = "sampled",
) -> pd.DataFrame:
    """Return for every policy whether its output keeps the target's distribution, and its bias.

    In each world every block the drafter may sample is put before the policy, its verified prefix
    goes through the exact rejection rule (arXiv 2607.05147, section 3.2), and what is emitted is
    continued by the target to γ + 1 tokens per request. The bias is the total variation distance
    between the joint distribution of these tokens and the target's own. A policy of the user's own
    is judged too, if it decides by the view alone: no randomness, the same answer to equal views.

    Parameters
    ----------
    policies : sequence of str, optional
        Specs as for `load_policy`; by default every built-in one.
    worlds : sequence of World, optional
        By default the paper's Appendix A and random worlds drawn with `seed`.
    setting : str
        "sampled": drafts are sampled and c_k depends on the tokens before k, as DSpark's head
        does. "greedy": the drafter proposes its most likely token. "token-confidence": c_k is the
        draft's probability of the sampled token k.

    Returns
    -------
    DataFrame
        One row per policy: policy, setting, lossless (bias within 1e-12 in all worlds), tv_bias
        (largest over worlds), world (where), appendix_a (bias there; NaN if not among `worlds`).

    Raises
    ------
    UserError
        An unknown policy or setting, or a policy that answers with impossible lengths.
    """
    given = in_setting(default_worlds(seed) if worlds is None else worlds, setting)
    if not given:
        raise UserError("check_lossless needs at least one world, got none")
    rows = []
    for spec in BUILT_IN if policies is None else policies:
        biases = [_beyond_rounding(tv_bias(spec, world)) for world in given]
        worst = int(np.argmax(biases))
        known = [b for b, w in zip(biases, given, strict=True) if w.name == appendix_a().name]
        rows.append(
            {
                "policy": spec,
                "setting": setting,
                "lossless": biases[worst] == 0.0,
                "tv_bias": biases[worst],
                "world": given[worst].name if biases[worst] > 0.0 else "",
                "appendix_a": max(known, default=nan),
            }
        )
    columns = ["policy", "setting", "lossless", "tv_bias", "world", "appendix_a"]
    return pd.DataFrame(rows, columns=columns)


def format_lossless(rows: pd.DataFrame) -> str:
    """Return the rows of `check_lossless` as aligned text, one line per policy."""
    width = max([len("policy"), *rows["policy"].map(len)])
    lines = [f"{'policy':<{width}}  {'setting':<16}  output"]
    for row in rows.to_dict("records"):
        verdict = "lossless"
        if not row["lossless"]:
            verdict = f"TV bias {row['tv_bias']:.4f} in {row['world']}"
            if row["appendix_a"] > 0.0 and row["world"] != appendix_a().name:
                verdict += f", {row['appendix_a']:.4f} in {appendix_a().name}"
        lines.append(f"{row['policy']:<{width}}  {row['setting']:<16}  {verdict}")
    return "\n".join(lines)


def tv_bias(spec: str, world: World) -> float:
    """Return the total variation distance ½ Σ |output − target| under a policy in one world."""
    wanted = _outer([_continued(tables.target, ()) for tables in world.requests])
    return float(np.abs(output_distribution(spec, world) - wanted).sum() / 2)


def output_distribution(spec: str, world: World) -> Floats:
    """Return the joint distribution of the first γ + 1 tokens of every request under a policy.

    One axis of length V per token, request after request.
    """
    gamma = world.requests[0].gamma
    policy = load_policy(spec, gamma)
    before = world.draft_view(monotone=getattr(policy, "believes", "truth") == "monotone")
    draft_len = np.full(len(world.requests), min(policy_draft_len(policy, gamma), gamma))
    if hasattr(policy, "draft_lengths"):
        chosen = deepcopy(policy).draft_lengths(before)
        draft_len = _checked(spec, chosen, draft_len, "draft_lengths")
    return np.sum(
        [
            odds * _given_blocks(spec, policy, world, world.view(before, draft_len, blocks), blocks)
            for blocks, odds in _drafts(world)
        ],
        axis=0,
    )


def _beyond_rounding(bias: float) -> float:
    return bias if bias > TOLERANCE else 0.0


def _given_blocks(
    spec: str, policy: Policy, world: World, view: SchedulerView, blocks: Sequence[Block]
) -> Floats:
    """Return the joint output once every request has drafted its block."""
    if isinstance(policy, KernelPolicy) and policy.knows_outcomes:
        return _knowing(policy, world, view, blocks)
    lengths = _checked(
        spec, deepcopy(policy).verify_lengths(view), view.draft_len, "verify_lengths"
    )
    given = zip(world.requests, blocks, lengths, strict=True)
    return _outer([_emitted(tables, block, int(length)) for tables, block, length in given])


def _knowing(
    policy: KernelPolicy, world: World, view: SchedulerView, blocks: Sequence[Block]
) -> Floats:
    """Return the output given the drafted blocks for a policy that is told what is accepted."""
    by_request = [
        _accepted_odds(tables, block, int(length))
        for tables, block, length in zip(world.requests, blocks, view.draft_len, strict=True)
    ]
    total = np.zeros(())
    for accepted in product(*(range(len(odds)) for odds in by_request)):
        odds = np.prod([o[a] for o, a in zip(by_request, accepted, strict=True)])
        if odds == 0.0:
            continue
        lengths = policy.verify_lengths_knowing(view, np.array(accepted, dtype=np.int64))
        given = zip(world.requests, blocks, lengths, accepted, strict=True)
        total = total + odds * _outer([_outcome(t, b, int(n), a) for t, b, n, a in given])
    return total


def _drafts(world: World) -> Iterator[tuple[tuple[Block, ...], float]]:
    """Yield what the requests may draft together, with its probability Π p_d(x_k | x_<k)."""
    by_request = []
    for tables in world.requests:
        blocks = product(range(tables.target[0].size), repeat=tables.gamma)
        odds = {x: float(np.prod([t[x[: t.ndim]] for t in tables.draft])) for x in blocks}
        by_request.append([(block, chance) for block, chance in odds.items() if chance > 0.0])
    for drafts in product(*by_request):
        yield tuple(block for block, _ in drafts), float(np.prod([odds for _, odds in drafts]))


def _accepted_odds(tables: Tables, block: Block, verify_len: int) -> Floats:
    """Return the probability that exactly 0..verify_len of the verified tokens are accepted.

    Token k is accepted with probability min(1, p_t / p_d) (arXiv 2607.05147, section 3.2).
    """
    odds, alive = np.zeros(verify_len + 1), 1.0
    for k in range(verify_len):
        place = block[: k + 1]
        accept = min(1.0, float(tables.target[k][place] / tables.draft[k][place]))
        odds[k] = alive * (1.0 - accept)
        alive *= accept
    odds[verify_len] = alive
    return odds


def _emitted(tables: Tables, block: Block, verify_len: int) -> Floats:
    """Return the distribution of γ + 1 tokens when `verify_len` tokens of a block are verified."""
    odds = _accepted_odds(tables, block, verify_len)
    possible = np.flatnonzero(odds).tolist()
    return np.sum([odds[a] * _outcome(tables, block, verify_len, a) for a in possible], axis=0)


def _outcome(tables: Tables, block: Block, verify_len: int, accepted: int) -> Floats:
    """Return the distribution of γ + 1 tokens once it is known how many tokens are accepted.

    After a rejection norm(max(0, p_t − p_d)) follows, after the last verified token p_t itself.
    """
    kept = block[: min(verify_len, accepted)]
    following = tables.target[len(kept)][kept]
    if accepted < verify_len:
        following = np.maximum(following - tables.draft[len(kept)][kept], 0.0)
        following = following / following.sum()
    output = np.zeros_like(tables.target[-1])
    output[kept] = _continued(tables.target, kept, following)
    return output


def _continued(target: Sequence[Floats], kept: Block, following: Floats | None = None) -> Floats:
    """Return the distribution of the tokens after `kept`, all from the target but the next."""
    tail = target[len(kept)][kept] if following is None else following
    for table in target[len(kept) + 1 :]:
        tail = tail[..., None] * table[kept]
    return tail


def _outer(by_request: Sequence[Floats]) -> Floats:
    """Return the joint distribution of independent requests."""
    return reduce(np.multiply.outer, by_request)


def _checked(spec: str, answer: object, limit: Ints, method: str) -> Ints:
    """Return a policy's answer as lengths (R,) in 0..limit."""
    lengths = np.asarray(answer)
    whole = np.issubdtype(lengths.dtype, np.integer)
    if lengths.shape != limit.shape or not whole or ((lengths < 0) | (lengths > limit)).any():
        raise UserError(
            f"policy '{spec}': {method} must return one whole number per request in 0 to "
            f"{limit.tolist()}, got {lengths.tolist()}"
        )
    return lengths.astype(np.int64)
