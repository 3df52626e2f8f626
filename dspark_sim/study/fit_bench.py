"""A profile and an acceptance law from benchmark results, with what was held out as a check."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dspark_sim.acceptance import ParametricAcceptance, write_law
from dspark_sim.core import UserError, expand_range, unknown_name, whole_file
from dspark_sim.throughput import write_profile
from dspark_sim.throughput.bench_results import read_results
from dspark_sim.throughput.fit import fit_results
from dspark_sim.throughput.fit_profile import fitted_profile
from dspark_sim.throughput.step_fit import LEVEL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from dspark_sim.throughput.bench_results import BenchResults
    from dspark_sim.throughput.formats import ImportOptions
    from dspark_sim.throughput.step_fit import StepFit

LAW = "acceptance.toml"
K, C = "num_speculative_tokens", "concurrency"
_HOLD_OUT = {"k": K, "c": C}


@dataclass(frozen=True, eq=False)
class BenchFit:
    """A fit to benchmark results and its check on results it has not seen.

    Attributes
    ----------
    fit : StepFit
    results : BenchResults
        All that was read, held out or not.
    fitted, held_out : DataFrame
        Per closed loop: source, num_speculative_tokens, concurrency, batch_tokens, tok_s_user as
        measured and fitted, error_pct, low_ and high_tok_s_user (95 % for a further measurement),
        output_tok_s as measured and fitted, output_error_pct. `held_out` may be empty.
    """

    fit: StepFit
    results: BenchResults
    fitted: pd.DataFrame
    held_out: pd.DataFrame

    def notes(self) -> list[str]:
        """Return what a reader has to know, one sentence each."""
        lines = []
        if self.results.left_out:
            names = ", ".join(self.results.left_out)
            lines.append(f"left out, draft length not fixed or not known (--draft-len): {names}")
        if not self.fit.lengths_known:
            lines.append(
                "no acceptance lengths are reported: step time and acceptance are not told apart, "
                "only their ratio; use the two fitted parts together, for predictions"
            )
        for column, name in ((K, "k"), (C, "c"), ("batch_tokens", "batch tokens")):
            if len(self.held_out):
                lines += self._between(column, name)
        return lines

    def _between(self, column: str, name: str) -> list[str]:
        """Say whether the points held out lie between those that were fitted, or beyond."""
        inside = np.unique(self.fitted[column])
        values = np.unique(self.held_out[column])
        new = values[~np.isin(values, inside)]
        outside = (new < inside[0]) | (new > inside[-1])
        return [
            f"held out: {name} = {_listed(part)} is {how} the fitted {name} = {_listed(inside)}"
            for part, how in (
                (new[~outside], "interpolation between"),
                (new[outside], "extrapolation beyond"),
            )
            if len(part)
        ]


def fit_bench(
    paths: Sequence[str | Path],
    *,
    draft_lens: Mapping[str, int] | None = None,
    lengths: Mapping[int, float] | None = None,
    drafter: str = "block",
    hold_out: Sequence[str] = (),
) -> BenchFit:
    """Fit step time and acceptance to results of one engine at several loads and draft lengths.

    Parameters
    ----------
    paths, draft_lens
        As for `read_results`.
    lengths, drafter
        As for `fit_results`.
    hold_out : sequence of str
        Results to predict instead: `k=5,6` by draft length, `c=64` by concurrency.
    """
    results = read_results(paths, draft_lens)
    away = _held_out(results.points, hold_out)
    seen, unseen = results.points[~away], results.points[away]
    if seen.empty:
        raise UserError(f"--hold-out {' '.join(hold_out)} leaves nothing to fit")
    fit = fit_results(seen, lengths=lengths, drafter=drafter, cover=unseen)
    return BenchFit(fit, results, _compared(fit, seen), _compared(fit, unseen))


def write_fit(found: BenchFit, folder: str | Path, options: ImportOptions) -> list[Path]:
    """Write profile, law (`acceptance.toml`), `fit.json` and pictures; return what was written.

    Raises
    ------
    UserError
        The folder holds something else than an earlier profile.
    """
    from dspark_sim.study.plot_fit import save_fit

    target = Path(folder)
    if target.is_dir() and any(target.iterdir()) and not (target / "profile.toml").is_file():
        raise UserError(f"{target}: holds other files; --out must be new or a profile's folder")
    keys = {"model": found.results.model} if found.results.model else {}
    options = replace(options, keys={**keys, **options.keys})
    profile = fitted_profile(found.fit, options, _source(found))
    with whole_file(target) as aside:
        write_profile(profile, aside)
        if found.fit.model.max_draft_len:
            law, notes = fitted_law(found.fit, profile.name)
            write_law(law, aside / LAW, notes)
        text = json.dumps(fit_summary(found), indent=2) + "\n"
        (aside / "fit.json").write_text(text, encoding="utf-8")
        save_fit(found, aside / "fit.png", profile.name)
        names = sorted(path.name for path in aside.iterdir())
    return [target / name for name in names]


def _source(found: BenchFit) -> str:
    files = found.results.files
    shown = ", ".join(files[:6]) + (f" and {len(files) - 6} more" if len(files) > 6 else "")
    lengths = ", ".join(str(k) for k in sorted(found.fitted[K].unique()))
    unseen = f"; {len(found.held_out)} others were held out" if len(found.held_out) else ""
    return f"benchmark results {shown}: {len(found.fitted)} at k = {lengths}{unseen}"


def fitted_law(fit: StepFit, name: str) -> tuple[ParametricAcceptance, dict[str, str]]:
    """Return the acceptance law of a fit, and notes on it.

    It is given by its lengths for k = 1, 2, …, so that a simulation returns each of them, whatever
    heterogeneity it is used with; that, benchmarks do not tell.
    """
    table = fit.lengths()
    law = ParametricAcceptance(
        name,
        lengths=tuple(float(f"{value:.6g}") for value in table["acceptance_length"]),
        origin=f"fitted to {len(fit.points)} closed loops, with profile {name}",
    )
    rows = table.to_dict("records")
    rates = "; ".join(
        f"{row['rate']:.3f} ({row['low_rate']:.3f} to {row['high_rate']:.3f})" for row in rows
    )
    lengths = "; ".join(f"{row['low_length']:.2f} to {row['high_length']:.2f}" for row in rows)
    known = (
        "Acceptance lengths were reported or given."
        if fit.lengths_known
        else "No acceptance lengths were reported: use it with the profile fitted with it."
    )
    return law, {
        "rates": f"conditional acceptance by position, with 95 % intervals: {rates}",
        "intervals": f"95 % intervals of the lengths: {lengths}",
        "told_apart": known,
        "assumed": "request_sd, token_sd and the confidence are not told by benchmarks",
    }


def fit_summary(found: BenchFit) -> dict[str, Any]:
    """Return the fit as plain values for JSON: points, held-out errors, θ, α, draft, lengths."""
    fit = found.fit
    most = int(fit.points[C].max())
    drafts = fit.model.draft_power is not None
    return {
        "model": "tok_s_user = 1000 * AL_k / (theta(c (1 + k)) + alpha(c) + draft(c, k)), ms",
        "lengths_known": fit.lengths_known,
        "interval": LEVEL,
        "noise": fit.noise,
        "jump": fit.jump,
        "roughness": fit.roughness,
        "effective_parameters": fit.effective,
        "fitted_errors": errors(found.fitted),
        "held_out_errors": errors(found.held_out),
        "acceptance": _records(fit.lengths()),
        "theta": _records(fit.theta(fit.knots())),
        "alpha": _records(fit.requests([1, most])),
        "draft": _records(fit.draft([1, most], fit.model.max_draft_len)) if drafts else [],
        "points": _records(found.fitted),
        "held_out": _records(found.held_out),
        "notes": found.notes(),
    }


def errors(table: pd.DataFrame) -> dict[str, Any]:
    """Return count, mean and largest absolute error in % of tok/s/user and of tok/s."""
    if table.empty:
        return {"points": 0}
    found: dict[str, Any] = {"points": len(table)}
    for key, column in (("tok_s_user", "error_pct"), ("output_tok_s", "output_error_pct")):
        size = table[column].abs()
        if size.notna().any():
            found |= {f"{key}_mean_pct": float(size.mean()), f"{key}_max_pct": float(size.max())}
    inside = table["tok_s_user"].between(table["low_tok_s_user"], table["high_tok_s_user"])
    return {**found, "inside_interval": int(inside.sum())}


def _listed(values: NDArray[np.int64]) -> str:
    """Write a few numbers in full, many by their ends."""
    if len(values) <= 6:
        return ", ".join(f"{value}" for value in values)
    return f"{values[0]}, {values[1]}, … {values[-1]} ({len(values)} values)"


def _held_out(points: pd.DataFrame, rules: Sequence[str]) -> pd.Series[bool]:
    """Return which points a user's rules hold out; a rule that none meets is a mistake."""
    away = pd.Series(False, index=points.index)
    for rule in rules:
        key, equals, text = rule.partition("=")
        if not equals:
            raise UserError(f"--hold-out '{rule}' is not of the form k=5,6 or c=64")
        if key.strip() not in _HOLD_OUT:
            raise unknown_name("key", key.strip(), _HOLD_OUT, f"--hold-out '{rule}'")
        column = _HOLD_OUT[key.strip()]
        for value in expand_range(text, f"--hold-out {key.strip()}"):
            chosen = points[column] == value
            if not chosen.any():
                there = ", ".join(str(one) for one in sorted(points[column].unique()))
                raise UserError(f"--hold-out '{rule}': no result has {value:g}; there are {there}")
            away |= chosen
    return away


def _compared(fit: StepFit, points: pd.DataFrame) -> pd.DataFrame:
    """Return measured and fitted values side by side."""
    table = points[["source", K, C, "tok_s_user", "output_tok_s"]].join(fit.predict(points))
    table["error_pct"] = 100.0 * (table["fitted_tok_s_user"] / table["tok_s_user"] - 1.0)
    ratio = table["fitted_output_tok_s"] / table["output_tok_s"]
    table["output_error_pct"] = 100.0 * (ratio - 1.0)
    return table.reset_index(drop=True)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records", double_precision=10))
    return rows
