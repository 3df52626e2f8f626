"""How much to verify: verification-length policies, one pure rule per file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dspark_sim.core import UserError, expand_range, parse_spec, unknown_name
from dspark_sim.policies.atom import read_atom
from dspark_sim.policies.confidence import with_confidence
from dspark_sim.policies.dcut import read_dcut, read_ratio
from dspark_sim.policies.dspark import read_dspark, read_dspark_async
from dspark_sim.policies.fixed import read_fixed, read_none
from dspark_sim.policies.forecast import read_forecast
from dspark_sim.policies.gates import read_gate_off, read_sticky_off
from dspark_sim.policies.imported import imported_policy, is_module, module_file
from dspark_sim.policies.kernel_policy import KernelPolicy
from dspark_sim.policies.knee import read_knee
from dspark_sim.policies.ktable import read_k_table
from dspark_sim.policies.oracle import read_oracle
from dspark_sim.policies.sgl_ema import read_sgl_ema
from dspark_sim.policies.sglang import read_sglang
from dspark_sim.policies.smartspec import read_dsd_online, read_smartspec
from dspark_sim.policies.spec import Spec
from dspark_sim.policies.tetris import read_tetris
from dspark_sim.policies.threshold import read_threshold
from dspark_sim.policies.trt import read_trt
from dspark_sim.policies.view import BelievedCost, DraftView, Policy, SchedulerView
from dspark_sim.policies.vllm import read_vllm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = [
    "POLICIES",
    "BelievedCost",
    "DraftView",
    "KernelPolicy",
    "Policy",
    "SchedulerView",
    "expand_policy",
    "is_lossless",
    "list_policies",
    "load_policy",
    "policy_draft_len",
    "policy_file",
]


class Family(NamedTuple):
    """A name's rule: how its spec is read, and where it comes from."""

    read: Callable[[Spec], Policy]
    origin: str


POLICIES: dict[str, Family] = {
    "none": Family(read_none, "plain decoding, no drafting"),
    "fixed": Family(read_fixed, "fixed:K[,gamma=G], the same for all (every engine's default)"),
    "k-table": Family(read_k_table, "k-table:LO-HI:K,...[,adaptive=yes], vLLM by batch size"),
    "threshold": Family(
        read_threshold,
        "threshold:TAU[,on=survival|rejection] or threshold:auto, arXiv 2607.05147, Fig. 5",
    ),
    "dspark": Family(read_dspark, "arXiv 2607.05147, Algorithm 1 (early stop)"),
    "dspark-async": Family(read_dspark_async, "dspark-async[:lag=2], arXiv 2607.05147, 5.2"),
    "vllm": Family(read_vllm, "vllm[:lag=1], vLLM pull request 47808"),
    "sglang": Family(read_sglang, "sglang[:lag=2], SGLang pull request 30261"),
    "trt": Family(read_trt, "trt[:lag=0,budgets=tiers,drain=LOSS], TensorRT-LLM 17056 and 18392"),
    "atom": Family(read_atom, "atom[:lag=2,buckets=1+3+6+8], ROCm ATOM"),
    "dcut": Family(read_dcut, "dcut[:lag=0], AngelSlim D-Cut, arXiv 2607.14647"),
    "ratio": Family(read_ratio, "ratio:RHO[,width=W], D-Cut at a fixed ratio"),
    "tetris": Family(read_tetris, "tetris:K[,extra=2,from=1], arXiv 2502.15197"),
    "knee": Family(read_knee, "knee[:M], a pass of constant size"),
    "smartspec": Family(read_smartspec, "smartspec[:alpha=0.7,keep=0.85], arXiv 2406.14066"),
    "dsd-online": Family(
        read_dsd_online, "dsd-online[:ks=0+1+3+7,keep=0.9], vLLM's early dynamic speculation"
    ),
    "sgl-ema": Family(read_sgl_ema, "sgl-ema[:ema=0.2,every=5,warmup=10], SGLang adaptive EAGLE"),
    "gate-off": Family(read_gate_off, "gate-off:LEAST[,window=32], TensorRT-LLM SpeculationGate"),
    "sticky-off": Family(read_sticky_off, "sticky-off[:LEAST,probe=8], antirez/ds4 965"),
    "forecast": Family(read_forecast, "our own: drafts and verifies by calibrated past blocks"),
    "oracle": Family(read_oracle, "knows the true outcomes; not lossless"),
}


def load_policy(spec: str, num_speculative_tokens: int = 7) -> Policy:
    """Return a fresh policy: a built-in `NAME:ARGS`, or `package.module:Name` of the user's own.

    A user's own is a class (called with `num_speculative_tokens` if it takes it, else with
    nothing), an instance, or a plain function of the view.
    """
    read = Spec.parse(spec, num_speculative_tokens)
    if read.name in POLICIES:
        return _built_in(read)
    own = len(read.args) == 1 and not read.keywords and read.args[0].isidentifier()
    if own and is_module(read.name):
        return imported_policy(read.name, read.args[0], num_speculative_tokens)
    raise unknown_name("policy", read.name, [*POLICIES, "package.module:Name"])


def _built_in(spec: Spec) -> Policy:
    source = spec.keywords.pop("conf", None)
    policy = POLICIES[spec.name].read(spec)
    return policy if source is None else with_confidence(spec, source, policy)


def expand_policy(spec: str) -> list[str]:
    """Expand a range in the first argument: `threshold:0.1..0.3:0.1` gives three policies."""
    name, colon, rest = spec.strip().partition(":")
    first, comma, others = rest.partition(",")
    if name not in POLICIES or ".." not in first:
        return [spec.strip()]
    values = expand_range(first, f"policy '{spec}'")
    return [f"{name}{colon}{value:g}{comma}{others}" for value in values]


def is_lossless(spec: str) -> bool:
    """Return whether a policy keeps the target's distribution; a user's own is taken to."""
    read = Spec.parse(spec, 7)
    if read.name not in POLICIES:
        return True
    try:
        return bool(getattr(_built_in(read), "lossless", True))
    except UserError:  # a name from elsewhere, as in a table of another version
        return read.name != "oracle"


def policy_file(spec: str) -> Path | None:
    """Return the source file of a user's own policy, None for a built-in one."""
    name, args, _ = parse_spec(spec)
    if name in POLICIES or not args or not is_module(name):
        return None
    return module_file(name)


def list_policies() -> list[dict[str, str]]:
    """Return name and origin of every built-in policy."""
    return [{"name": name, "origin": family.origin} for name, family in POLICIES.items()]


def policy_draft_len(policy: Policy, num_speculative_tokens: int) -> int:
    """Return γ of a policy: its own `max_draft_len` if it has one."""
    length = getattr(policy, "max_draft_len", num_speculative_tokens)
    if not isinstance(length, int) or length < 0:
        raise UserError(
            f"a policy's max_draft_len must be a whole number of 0 or more, got {length!r}"
        )
    return length
