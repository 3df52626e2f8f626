"""V1: vLLM on DeepSeek-V4-Pro; fixed draft lengths predict others, and adaptive verification.

Step time and acceptance are recovered from k = 0, 1, 3, 7 (`throughput.fit`). Published rates also
hold what the fit's formula leaves out: prompts in the batch, what a request's end cuts off, and in
the total the time to the first token, filling and draining. So the fit is repeated on rates from
which the simulator's own share of these was taken, and the total is scaled, per concurrency, to
the fitted points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.config import Scenario
from dspark_sim.simulator.simulate import Inputs, simulate
from dspark_sim.study.fit_bench import fitted_law
from dspark_sim.study.validate.case import Check, Point, Settings, Validation, errors_within
from dspark_sim.study.validate.published import published, rows
from dspark_sim.throughput import EngineProfile, ImportOptions
from dspark_sim.throughput.fit import fit_results
from dspark_sim.throughput.fit_profile import fitted_profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dspark_sim.acceptance import ParametricAcceptance
    from dspark_sim.throughput.step_fit import StepFit

TITLE = "vLLM, DeepSeek-V4-Pro on 8 x B300: fixed k = 5, 6 and adaptive verification"
DRAFT_LENS = {"none": 0, "fixed:1": 1, "fixed:3": 3, "fixed:7": 7, "fixed:5": 5, "fixed:6": 6}
FITTED = ("none", "fixed:1", "fixed:3", "fixed:7")
ADAPTIVE = "vllm"
HETEROGENEITY = 1.0
"""Standard deviation of acceptance between requests, and between tokens, on the logit."""
WORKLOAD = "synth:chat,in=300,in_sigma=1,in_max=8000,out=1200,out_sigma=0.8,out_max=2048"
REQUESTS = 880
USER, TOTAL = "tok_s_user", "output_tok_s"
_TIE = 3.0


@dataclass(frozen=True)
class FittedEngine:
    """A fitted engine: step time, acceptance, and the fit they come from."""

    profile: EngineProfile
    law: ParametricAcceptance
    fit: StepFit

    @classmethod
    def of(cls, loops: pd.DataFrame, cover: pd.DataFrame) -> FittedEngine:
        """Fit closed loops; `cover` names batch sizes and draft lengths that will be predicted."""
        fit = fit_results(loops, cover=cover)
        keys = {"num_gpus": 8, "max_num_batched_tokens": 8192}
        profile = fitted_profile(fit, ImportOptions(name="v1", keys=keys), "published")
        law, _ = fitted_law(fit, "v1")
        spread = replace(law, request_sd=HETEROGENEITY, token_sd=HETEROGENEITY)
        return cls(profile, spread, fit)

    def formula(self, loops: pd.DataFrame) -> pd.Series[float]:
        """Return tok/s/user of the fit's formula, without the simulator."""
        return self.fit.predict(loops)["fitted_tok_s_user"]

    def simulated(self, loops: pd.DataFrame, quick: bool) -> pd.DataFrame:
        """Simulate the benchmark; return tok/s/user and tok/s over the whole run, row by row."""
        found = [self._rates(row["source"], row["concurrency"], quick) for row in rows(loops)]
        return pd.DataFrame(found, columns=[USER, TOTAL], index=loops.index)

    def _rates(self, policy: str, concurrency: int, quick: bool) -> tuple[float, float]:
        scenario = Scenario(
            trace=WORKLOAD,
            profile=self.profile.name,
            policy=policy,
            concurrency=concurrency,
            requests=min(REQUESTS, max(4 * concurrency, 64)) if quick else REQUESTS,
            extend=True,
            record="requests",
        )
        summary = simulate(scenario, Inputs(profile=self.profile, acceptance=self.law)).summary
        return summary["tok_s_user_mean"], summary["output_throughput"]


def run(settings: Settings) -> Validation:
    """Fit k = 0, 1, 3, 7; predict k = 5, 6 and adaptive verification at every concurrency."""
    table = published("vllm_dsv4_pro")
    loops = pd.DataFrame(
        {
            "source": table["policy"],
            "num_speculative_tokens": table["policy"].map(DRAFT_LENS),
            "concurrency": table["concurrency"],
            USER: table[USER],
            TOTAL: table[TOTAL],
            "acceptance_length": np.nan,
            "position_rates": None,
        }
    )
    known = loops["source"].isin(FITTED)
    seen, unseen = (_whole(loops[known]), loops[~known])
    cover = _whole(unseen[unseen["source"] != ADAPTIVE])
    first = FittedEngine.of(seen, cover)
    there = first.simulated(seen, settings.quick)
    more = there[USER] / first.formula(seen)  # what the simulator has beyond the formula
    engine = FittedEngine.of(seen.assign(**{USER: seen[USER] / more}), cover)
    again = pd.DataFrame({USER: engine.formula(seen) * more})
    again[TOTAL] = there[TOTAL] * again[USER] / there[USER]
    scale = (seen[TOTAL] / again[TOTAL]).groupby(seen["concurrency"]).mean()
    new = engine.simulated(unseen, settings.quick)
    points = [
        *_points(seen, again, scale, fitted=True),
        *_points(unseen, new, scale, fitted=False),
    ]
    return Validation(
        case="V1",
        title=TITLE,
        fitted="step time, acceptance by position and, per concurrency, the share of the total "
        "that users' rates explain; to tok/s/user and tok/s of k = 0, 1, 3, 7",
        fit_points=2 * len(seen),
        parameters=round(engine.fit.effective + len(scale), 1),
        by_hand=(
            f"heterogeneity of acceptance {HETEROGENEITY:g} between requests and between tokens, "
            "by the AUCs of arXiv 2607.05147, Fig. 6",
            f"{'up to ' * settings.quick}{REQUESTS} requests with assumed lengths ({WORKLOAD}), "
            "chunked prefill, batches of at most 8,192 tokens",
            "the policy is vLLM's rule with drafts of 7, its table the fitted step time, its "
            "confidences calibrated and one step old",
        ),
        points=tuple(points),
        checks=tuple(_checks(points)),
        notes=(_confidence_note(engine, points, settings.quick),),
    )


def _whole(loops: pd.DataFrame) -> pd.DataFrame:
    return loops.astype({"num_speculative_tokens": int}).reset_index(drop=True)


def _points(
    loops: pd.DataFrame, found: pd.DataFrame, scale: pd.Series[float], fitted: bool
) -> Iterator[Point]:
    totals = found[TOTAL] * loops["concurrency"].map(scale)
    for quantity, values in ((USER, found[USER]), (TOTAL, totals)):
        for row, value in zip(rows(loops), values, strict=True):
            at, pub = float(row["concurrency"]), float(row[quantity])
            yield Point(row["source"], quantity, at, pub, float(value), fitted=fitted)


def _checks(points: list[Point]) -> Iterator[Check]:
    predicted = [point for point in points if not point.fitted]
    fixed = [point for point in predicted if point.series != ADAPTIVE]
    adaptive = [point for point in predicted if point.series == ADAPTIVE]
    yield from errors_within("k = 5, 6", fixed, 3.0, 6.0)
    yield from errors_within("adaptive", adaptive, 5.0, 10.0)
    yield from _orderings({(p.series, p.at): p.predicted for p in points if p.quantity == TOTAL})
    yield _best_fixed(points)


def _orderings(value: dict[tuple[str, float], float]) -> Iterator[Check]:
    """Check what the blog's throughput shows of adaptive verification against fixed lengths."""
    behind = max(
        100.0 * (rate / value[ADAPTIVE, at] - 1.0)
        for (policy, at), rate in value.items()
        if policy != ADAPTIVE and at in (16.0, 32.0, 64.0)
    )
    yield Check("throughput: best fixed k above adaptive, c = 16 to 64", behind, 0.0)
    apart = max(abs(_above_k3(value, at)) for at in (128.0, 256.0))
    yield Check("throughput: adaptive apart from k = 3, c = 128 and 256", apart, 3.0)


def _above_k3(value: dict[tuple[str, float], float], at: float) -> float:
    return 100.0 * (value[ADAPTIVE, at] / value["fixed:3", at] - 1.0)


def _confidence_note(engine: FittedEngine, points: list[Point], quick: bool) -> str:
    """Say by how much adaptive verification is too good at high load, and what would explain it."""
    mine = [p for p in points if p.quantity == USER]
    new = {(p.series, p.at): p.predicted for p in mine}
    old = {(p.series, p.at): p.published for p in mine}
    text = (
        f"by tok/s/user adaptive is predicted {_above_k3(new, 128):+.1f} and "
        f"{_above_k3(new, 256):+.1f} % from k = 3 at c = 128 and 256, published "
        f"{_above_k3(old, 128):+.1f} and {_above_k3(old, 256):+.1f} %"
    )
    if quick:
        return text
    noisy = replace(engine, law=replace(engine.law, confidence_noise=1.0))
    rates = noisy.simulated(pd.DataFrame({"source": ADAPTIVE, "concurrency": [128, 256]}), quick)
    for at, rate in zip((128.0, 256.0), rates[USER], strict=True):
        new[ADAPTIVE, at] = float(rate)
    return (
        f"{text}; with a confidence noise of 1 on the logit it would be "
        f"{_above_k3(new, 128):+.1f} and {_above_k3(new, 256):+.1f} %: how good this drafter's "
        "confidences are on this traffic is not published, and none was assumed"
    )


def _best_fixed(points: Iterable[Point]) -> Check:
    """Check that the fixed length that is best by prediction is, up to a tie, the published one."""
    totals = [p for p in points if p.quantity == TOTAL and p.series != ADAPTIVE]
    behind = 0.0
    for at in {p.at for p in totals}:
        here = [p for p in totals if p.at == at]
        chosen, best = max(here, key=lambda p: p.predicted), max(here, key=lambda p: p.published)
        behind = max(behind, 100.0 * (1.0 - chosen.published / best.published))
    return Check(
        "published throughput of the fixed k predicted best, behind the best", behind, _TIE
    )
