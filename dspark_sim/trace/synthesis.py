"""Synthetic traces: lognormal or fixed lengths, or those of another trace, with chosen arrivals."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from dspark_sim.core import UserError, unknown_name
from dspark_sim.trace import arrivals, rules
from dspark_sim.trace.trace import Trace


@dataclass(frozen=True)
class Lengths:
    """Independent lognormal prompt and output lengths in tokens, given by median and sigma.

    Sigma is the standard deviation of the logarithm; 0 means that all lengths are the median.
    Draws are rounded, raised to 1 and cut at the maximum.
    """

    input_tokens: float
    output_tokens: float
    input_sigma: float = 0.0
    output_sigma: float = 0.0
    input_max: float = rules.MAX_TOKENS
    output_max: float = rules.MAX_TOKENS

    def __post_init__(self) -> None:
        for field in fields(self):
            value, low = getattr(self, field.name), 0 if "sigma" in field.name else 1
            high = 10 if "sigma" in field.name else rules.MAX_TOKENS
            if not low <= value <= high:
                raise UserError(f"{field.name} must be from {low} to {high}, got {value:g}")

    def draw(self, n: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Draw lengths, shape (n, 2): prompt and output. More requests extend fewer."""
        median = np.array([self.input_tokens, self.output_tokens])
        sigma = np.array([self.input_sigma, self.output_sigma])
        longest = np.array([self.input_max, self.output_max])
        with np.errstate(over="ignore"):
            lengths = median * np.exp(sigma * rng.standard_normal((n, 2)))
        return np.clip(np.rint(lengths), 1, np.rint(longest)).astype(np.int64)

    def __str__(self) -> str:
        return (
            f"prompts {_describe(self.input_tokens, self.input_sigma, self.input_max)}, "
            f"outputs {_describe(self.output_tokens, self.output_sigma, self.output_max)}"
        )


def _describe(median: float, sigma: float, longest: float) -> str:
    cut = f", at most {longest:g}" if longest < rules.MAX_TOKENS else ""
    return f"lognormal (median {median:g}, sigma {sigma:g}{cut})" if sigma else f"of {median:g}"


@dataclass(frozen=True)
class Kind:
    """What `synth:NAME` draws: default lengths, rate and category; None where they must be given.

    `category` ties the requests to the acceptance laws of that name.
    """

    about: str
    lengths: Lengths | None = None
    rate_per_s: float | None = 1.0
    category: str = ""


# chat and code: medians, maxima and rates of Azure's public 2023 traces (conversation and code);
# sigma = ln(p90 / p50) / 1.2816, the upper half, as long requests fill the engine.
# reasoning: an assumption (short problems, answers of thousands of tokens), no public trace.
KINDS = {
    "chat": Kind(
        "chat-like: median prompt 1,020 and output 129 tokens, as Azure's 2023 conversations",
        Lengths(1020, 129, 0.77, 0.93, 14_050, 1_000),
        rate_per_s=5.5,
        category="chat",
    ),
    "code": Kind(
        "code-like: median prompt 1,469 and output 13 tokens, as Azure's 2023 code completions",
        Lengths(1469, 13, 0.98, 1.13, 7_437, 1_899),
        rate_per_s=2.6,
        category="code",
    ),
    "reasoning": Kind(
        "reasoning-like: median prompt 128 and output 4,000 tokens, an assumption",
        Lengths(128, 4_000, 0.6, 0.7, 2_048, 16_384),
        rate_per_s=1.0,
        category="math",
    ),
    "fixed": Kind("every prompt of in= tokens, every output of out= tokens"),
    "lognormal": Kind("lognormal lengths with medians in=, out= and in_sigma=, out_sigma=, max="),
    "empirical": Kind(
        "(prompt, output) pairs drawn from the trace from=, at its rate", rate_per_s=None
    ),
}


def synthesize(
    kind: str,
    num_requests: int = 1_000,
    seed: int = 0,
    *,
    rate_per_s: float | None = None,
    process: str = "poisson",
    cv: float | None = None,
    category: str | None = None,
    source: Trace | None = None,
    **lengths: float,
) -> Trace:
    """Draw a trace of a kind in `KINDS`; what is not given comes from there.

    `lengths` are fields of `Lengths`. `source` is the trace whose (prompt, output, category) rows
    `empirical` draws with replacement. Arrivals are those of `arrivals.arrival_times`. Lengths and
    arrivals have random streams of their own: changing one leaves the other as it was.

    >>> trace = synthesize("fixed", 2, input_tokens=512, output_tokens=256)
    >>> trace.requests["output_tokens"].tolist()
    [256, 256]
    """
    if kind not in KINDS:
        raise unknown_name("kind of synthetic trace", kind, KINDS)
    if num_requests < 1:
        raise UserError(f"a trace needs at least one request, {num_requests} were asked for")
    rng = arrivals.streams(seed)
    if kind == "empirical":
        frame, about = _resampled(source, lengths, num_requests, rng.lengths)
    else:
        law = _lengths(kind, source, lengths)
        frame = pd.DataFrame(
            law.draw(num_requests, rng.lengths), columns=["prompt_tokens", "output_tokens"]
        ).assign(category=KINDS[kind].category)
        about = str(law)
    rate = rate_per_s if rate_per_s is not None else KINDS[kind].rate_per_s
    if rate is None:
        rate = source.rate_per_s if source is not None and len(source) > 1 else 1.0
    frame["arrival_s"] = arrivals.arrival_times(process, rate, num_requests, rng.arrivals, cv)
    if category is not None:
        frame["category"] = category
        about += f", category '{category}'"
    origin = (
        f"synthetic {kind}: {num_requests} requests, {about}, "
        f"{arrivals.describe(process, rate, cv)}, seed {seed}"
    )
    return Trace(frame, name=kind, origin=origin)


def _resampled(
    source: Trace | None, lengths: dict[str, float], n: int, rng: np.random.Generator
) -> tuple[pd.DataFrame, str]:
    if source is None:
        raise UserError("synth:empirical needs from=, the trace to draw lengths from")
    if lengths:
        raise UserError(f"synth:empirical takes its lengths from a trace, not {min(lengths)}")
    rows = source.requests.iloc[rng.integers(0, len(source), size=n)].reset_index(drop=True)
    return rows[["prompt_tokens", "output_tokens", "category"]], f"lengths drawn from {source.name}"


def _lengths(kind: str, source: Trace | None, given: dict[str, float]) -> Lengths:
    """Lay the given lengths over those of the kind."""
    if source is not None:
        raise UserError(f"synth:{kind} draws its own lengths, from= is for synth:empirical")
    allowed = [field.name for field in fields(Lengths)]
    if kind == "fixed":
        allowed = allowed[:2]
    for name, value in given.items():
        if name not in allowed:
            raise unknown_name("length", name, allowed, f"synth:{kind}")
        if kind == "fixed" and not float(value).is_integer():
            raise UserError(f"synth:fixed: {name} must be a whole number, got {value}")
    base = KINDS[kind].lengths
    if base is not None:
        return replace(base, **given)
    missing = [name for name in allowed[:2] if name not in given]
    if missing:
        raise UserError(f"synth:{kind} needs in= and out=, {' and '.join(missing)} not given")
    return Lengths(**given)
