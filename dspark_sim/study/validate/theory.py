"""V6: closed forms of queueing theory and of acceptance, beside simulations of the same worlds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.acceptance import ParametricAcceptance, geometric
from dspark_sim.config import Scenario
from dspark_sim.simulator.simulate import Inputs, simulate
from dspark_sim.study.validate.case import Check, Point, Settings, Validation
from dspark_sim.throughput import EngineProfile, load_profile
from dspark_sim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dspark_sim.acceptance import AcceptanceSource
    from dspark_sim.simulator.result import Result

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

TITLE = "Closed forms of queueing and acceptance"
STEP_MS, TOKEN_MS = 1.0, 0.1
CONFIDENCE = 0.999


def run(settings: Settings) -> Validation:
    """Simulate over seeds; a closed form has to lie in the 99.9 % interval of their mean."""
    seeds = range(8 if settings.quick else 24)
    points = [*_queues(seeds), *_lengths(seeds), *_best_length(), *_single_request(), *_lockstep()]
    outside = sum(not p.low <= p.published <= p.high for p in points if np.isfinite(p.low))
    exact = [abs(p.error_pct) for p in points if not np.isfinite(p.low)]
    return Validation(
        case="V6",
        title=TITLE,
        at="draft length k",
        axes={"wait_ms": "utilisation", "draft_len": "concurrency", "output_tok_s": "concurrency"},
        by_hand=(
            f"a step takes {STEP_MS:g} ms and {TOKEN_MS:g} ms per token, one request at a time in "
            "the queues",
            f"bands are {100 * CONFIDENCE:g} % intervals of the mean over {len(seeds)} seeds",
        ),
        points=tuple(points),
        checks=(
            Check("closed forms outside the interval of the simulation", float(outside), 0.0, ""),
            Check("exact ones: largest error", max(exact), 1e-6),
        ),
        notes=("published stands for the closed form, predicted for the simulation",),
    )


def _queues(seeds: Sequence[int]) -> Iterator[Point]:
    """Give the mean wait of M/D/1, and of M/G/1 (Pollaczek and Khinchine), in ms."""
    for name, lengths, odds in (
        ("M/D/1", np.array([4]), np.array([1.0])),
        ("M/G/1", np.array([2, 5, 17]), np.array([0.5, 0.3, 0.2])),
    ):
        service_ms = (lengths - 1) * (STEP_MS + TOKEN_MS)
        mean, square = float(odds @ service_ms), float(odds @ service_ms**2)
        for load in (0.3, 0.5, 0.7):
            waits = []
            for seed in seeds:
                outputs = np.random.default_rng(seed).choice(lengths, 4000, p=odds)
                waits.append(_mean_wait_ms(outputs, load / mean * 1e3, seed))
            form = load / mean * square / (2.0 * (1.0 - load))
            yield Point(name, "wait_ms", load, form, *_interval(np.array(waits)))


def _mean_wait_ms(outputs: Ints, rate_per_s: float, seed: int) -> float:
    """Return the mean wait for one slot under Poisson arrivals, the start left out."""
    trace = _trace(outputs).with_arrivals("poisson", rate_per_s, seed)
    rows = _simulated(trace, _profile(max_num_seqs=1), policy="none").requests
    waits = (rows["admitted_s"] - rows["arrival_s"])[len(outputs) // 10 :]
    return 1e3 * float(waits.mean())


def _lengths(seeds: Sequence[int]) -> Iterator[Point]:
    """Give the acceptance length (1 − a^(k+1)) / (1 − a) of drafts that are accepted alike."""
    for rate in (0.6, 0.8):
        for k in (1, 3, 5, 7):
            found = [
                _simulated(
                    _trace(np.full(60, 200)), _profile(), _even(rate, k), policy=f"fixed:{k}",
                    concurrency=12, seed=seed,
                ).summary["acceptance_length"]
                for seed in seeds
            ]  # fmt: skip
            form = (1.0 - rate ** (k + 1)) / (1.0 - rate)
            name = f"each accepted with {rate:g}"
            yield Point(name, "acceptance_length", k, form, *_interval(np.array(found)))


def _best_length() -> Iterator[Point]:
    """Give the draft length that is best by hand, c E[tokens] / T(c (1 + k)), and in a run."""
    rate, c, lengths = 0.7, 4, range(1, 8)
    by_hand = [
        (1.0 - rate ** (k + 1)) / (1.0 - rate) / (STEP_MS + TOKEN_MS * c * (1 + k)) for k in lengths
    ]
    found = [
        _simulated(
            _trace(np.full(200, 400)), _profile(), _even(rate, k), policy=f"fixed:{k}",
            concurrency=c,
        ).summary["output_tok_s"]
        for k in lengths
    ]  # fmt: skip
    best = 1.0 + int(np.argmax(by_hand)), 1.0 + int(np.argmax(found))
    yield Point("best fixed length", "draft_len", float(c), *best)


def _single_request() -> Iterator[Point]:
    """Give the TPOT of a single request whose drafts are all accepted: (draft + verify) / (1 + k).

    On vLLM's published costs of DeepSeek-V4-Flash.
    """
    profile = load_profile("dsv4-flash-b300-tp4")
    for k in (1, 3, 7):
        result = _simulated(
            _trace(np.array([1 + 5 * (1 + k)])), profile, _even(1.0, k), policy=f"fixed:{k}"
        )
        form = float(profile.draft_ms(1, k) + profile.verify_ms(1 + k)) / (1 + k)
        yield Point("one request", "tpot_ms", k, form, result.summary["mean_tpot_ms"])


def _lockstep() -> Iterator[Point]:
    """Give the throughput of c equal requests in lockstep: 20 tokens each in 19 steps."""
    for c in (1, 4, 16):
        result = _simulated(_trace(np.full(8 * c, 20)), _profile(), policy="none", concurrency=c)
        form = c * 20 / (19 * (STEP_MS + TOKEN_MS * c) / 1e3)
        yield Point("closed loop", "output_tok_s", c, form, result.summary["output_tok_s"])


def _interval(samples: Floats) -> tuple[float, float, float]:
    """Return the mean and its interval (Student's t)."""
    from scipy.stats import t

    mean = float(samples.mean())
    half = float(
        t.ppf(0.5 + CONFIDENCE / 2, len(samples) - 1) * samples.std(ddof=1) / len(samples) ** 0.5
    )
    return mean, mean - half, mean + half


def _even(rate: float, draft_len: int) -> ParametricAcceptance:
    return ParametricAcceptance("even", (rate,) * draft_len, request_sd=0.0, token_sd=0.0)


def _trace(outputs: Ints) -> Trace:
    frame = pd.DataFrame({"arrival_s": 0.0, "prompt_tokens": 10, "output_tokens": outputs})
    return Trace(frame)


def _profile(max_num_seqs: int = 64) -> EngineProfile:
    sizes = np.arange(1, 513)
    return EngineProfile(
        name="straight",
        engine="none",
        model="none",
        gpu="none",
        num_gpus=1,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=512,
        kv_tokens=None,
        lookup="linear",
        drafter="block",
        provenance={"source": "a straight line"},
        verify=pd.DataFrame({"batch_tokens": sizes, "ms": STEP_MS + TOKEN_MS * sizes}),
        draft=pd.DataFrame({"num_requests": [1, 64], "draft_len": 1, "ms": 0.0}),
    )


def _simulated(
    trace: Trace, profile: EngineProfile, source: AcceptanceSource | None = None, **keys: object
) -> Result:
    values = {"profile": profile.name, "prefill": {"mode": "none"}, "record": "requests", **keys}
    scenario = Scenario.check(values)
    return simulate(scenario, Inputs(trace, profile, source or geometric(2.0, 7)))
