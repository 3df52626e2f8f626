"""How much to verify: verification-length policies, one pure rule per file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_sim.core import UserError, expand_range, parse_number, parse_spec, unknown_name
from dspark_sim.policies import rules
from dspark_sim.policies.kernel_policy import KernelPolicy
from dspark_sim.policies.view import BelievedCost, DraftView, Policy, SchedulerView

if TYPE_CHECKING:
    from collections.abc import Callable

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


def _none(spec: str, gamma: int, args: list[str], keywords: dict[str, str]) -> KernelPolicy:
    """No speculation: nothing is drafted, one token per step."""
    _expect(spec, args, keywords, 0)
    return KernelPolicy(spec, rules.FIXED, 0, (0.0,), needs_confidence=False)


def _fixed(spec: str, gamma: int, args: list[str], keywords: dict[str, str]) -> KernelPolicy:
    """fixed:K drafts and verifies K tokens; fixed:K,gamma=G drafts G and verifies K."""
    _expect(spec, args, keywords, 1, "gamma")
    length = _whole(spec, "K", args[0])
    drafted = _whole(spec, "gamma", keywords["gamma"]) if "gamma" in keywords else length
    if drafted < length:
        raise UserError(f"policy '{spec}': gamma must be at least K = {length}, got {drafted}")
    return KernelPolicy(spec, rules.FIXED, drafted, (float(length),), needs_confidence=False)


def _threshold(spec: str, gamma: int, args: list[str], keywords: dict[str, str]) -> KernelPolicy:
    """threshold:TAU keeps tokens while confidence >= TAU; on=survival tests the product."""
    _expect(spec, args, keywords, 1, "on")
    tau = parse_number(args[0], f"policy '{spec}': TAU")
    if not 0.0 <= tau <= 1.0:
        raise UserError(f"policy '{spec}': TAU must lie in 0..1, got {tau:g}")
    on = keywords.get("on", "confidence")
    if on not in ("confidence", "survival"):
        raise unknown_name("value of on", on, ("confidence", "survival"), f"policy '{spec}'")
    return KernelPolicy(spec, rules.THRESHOLD, gamma, (tau, float(on == "survival")))


def _dspark(spec: str, gamma: int, args: list[str], keywords: dict[str, str]) -> KernelPolicy:
    """Algorithm 1: live survival, admit while expected throughput rises, stop at the first miss."""
    _expect(spec, args, keywords, 0)
    return KernelPolicy(spec, rules.DSPARK, gamma)


def _lagged(
    rule: int, believes: str, usual_lag: int, spec: str, gamma: int, args: list[str],
    keywords: dict[str, str],
) -> KernelPolicy:  # fmt: skip
    """Budget from survival `lag` steps old by global search, tokens by live survival.

    A live budget (lag 0) looks ahead and is not lossless (arXiv 2607.05147, Appendix A).
    """
    _expect(spec, args, keywords, 0, "lag")
    lag = _whole(spec, "lag", keywords.get("lag", str(usual_lag)))
    if lag > 3:
        raise UserError(f"policy '{spec}': lag must lie in 0..3, got {lag}")
    return KernelPolicy(spec, rule, gamma, lag=lag, believes=believes, lossless=lag > 0)


def _oracle(spec: str, gamma: int, args: list[str], keywords: dict[str, str]) -> KernelPolicy:
    """Verify only drafts that will be accepted. A yardstick: not lossless."""
    _expect(spec, args, keywords, 0)
    return KernelPolicy(
        spec, rules.ORACLE, gamma, needs_confidence=False, lossless=False, knows_outcomes=True
    )


POLICIES: dict[str, Callable[[str, int, list[str], dict[str, str]], KernelPolicy]] = {
    "none": _none,
    "fixed": _fixed,
    "threshold": _threshold,
    "dspark": _dspark,
    "dspark-async": partial(_lagged, rules.DSPARK_ASYNC, "truth", 2),
    "vllm": partial(_lagged, rules.VLLM, "monotone", 1),
    "oracle": _oracle,
}

_ORIGINS = {
    "none": "plain decoding, no drafting",
    "fixed": "fixed:K[,gamma=G], the same length for every request (every engine's default)",
    "threshold": "threshold:TAU[,on=survival], arXiv 2607.05147, Fig. 5",
    "dspark": "arXiv 2607.05147, Algorithm 1 (early stop)",
    "dspark-async": "dspark-async[:lag=2], arXiv 2607.05147, section 5.2",
    "vllm": "vllm[:lag=1], vLLM pull request 47808",
    "oracle": "knows the true outcomes; not lossless",
}


def load_policy(spec: str, num_speculative_tokens: int = 7) -> Policy:
    """Return a fresh policy: a built-in `NAME:ARGS`, or `package.module:Name` of the user's own.

    A user's own is a class (called with `num_speculative_tokens` if it takes it, else with
    nothing), an instance, or a plain function of the view.
    """
    name, args, keywords = parse_spec(spec)
    if name in POLICIES:
        return POLICIES[name](spec.strip(), num_speculative_tokens, args, dict(keywords))
    if len(args) == 1 and not keywords and args[0].isidentifier() and _is_module(name):
        return _imported(name, args[0], num_speculative_tokens)
    raise unknown_name("policy", name, [*POLICIES, "package.module:Name"])


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
    name, args, keywords = parse_spec(spec)
    if name not in POLICIES:
        return True
    try:
        return POLICIES[name](spec, 7, args, dict(keywords)).lossless
    except UserError:  # a name from elsewhere, as in a table of another version
        return name != "oracle"


def policy_file(spec: str) -> Path | None:
    """Return the source file of a user's own policy, None for a built-in one."""
    name, args, _ = parse_spec(spec)
    if name in POLICIES or not args or not _is_module(name):
        return None
    try:
        found = importlib.util.find_spec(name)
    except ImportError:
        return None
    return Path(found.origin) if found is not None and found.origin is not None else None


def list_policies() -> list[dict[str, str]]:
    """Return name and origin of every built-in policy."""
    return [{"name": name, "origin": origin} for name, origin in _ORIGINS.items()]


def policy_draft_len(policy: Policy, num_speculative_tokens: int) -> int:
    """Return γ of a policy: its own `max_draft_len` if it has one."""
    length = getattr(policy, "max_draft_len", num_speculative_tokens)
    if not isinstance(length, int) or length < 0:
        raise UserError(
            f"a policy's max_draft_len must be a whole number of 0 or more, got {length!r}"
        )
    return length


class _FunctionPolicy:
    def __init__(self, function: Callable[[SchedulerView], Any]) -> None:
        self.verify_lengths = function


def _is_module(name: str) -> bool:
    """Return whether a name is a module that can be imported, or at least looks like one."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    return "." in name or name in sys.modules or importlib.util.find_spec(name) is not None


def _imported(module_name: str, attribute: str, num_speculative_tokens: int) -> Policy:
    try:
        target = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:
        what = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise UserError(
            f"policy '{module_name}:{attribute}' cannot be imported: {what}{error}"
        ) from error
    if isinstance(target, type):
        parameters = inspect.signature(target).parameters
        takes_gamma = "num_speculative_tokens" in parameters
        given = {"num_speculative_tokens": num_speculative_tokens} if takes_gamma else {}
        try:
            inspect.signature(target).bind(**given)
        except TypeError as error:
            raise UserError(
                f"policy '{module_name}:{attribute}' is made with num_speculative_tokens or with "
                f"nothing, but {error}"
            ) from None
        target = target(**given)
    if hasattr(target, "verify_lengths"):
        return target
    if callable(target):
        return _FunctionPolicy(target)
    raise UserError(
        f"policy '{module_name}:{attribute}' is neither callable nor has it verify_lengths(view)"
    )


def _whole(spec: str, what: str, text: str) -> int:
    value = parse_number(text, f"policy '{spec}': {what}")
    if value != int(value) or value < 0:
        raise UserError(f"policy '{spec}': {what} must be a whole number of 0 or more, got {text}")
    return int(value)


def _expect(spec: str, args: list[str], keywords: dict[str, str], count: int, *known: str) -> None:
    if len(args) != count:
        raise UserError(f"policy '{spec}' takes {count} plain argument(s), got {len(args)}")
    for key in keywords:
        if key not in known:
            raise unknown_name("key", key, known or ["(none)"], f"policy '{spec}'")
