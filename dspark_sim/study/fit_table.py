"""A fit to benchmark results as text: points, held-out errors, step time and acceptance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dspark_sim.study.fit_bench import C, K, errors

if TYPE_CHECKING:
    import pandas as pd

    from dspark_sim.study.fit_bench import BenchFit

_SHOWN = {
    K: "k",
    C: "c",
    "batch_tokens": "tokens",
    "tok_s_user": "tok/s/user",
    "fitted_tok_s_user": "fitted",
    "error_pct": "error %",
    "low_tok_s_user": "low",
    "high_tok_s_user": "high",
    "output_tok_s": "tok/s",
    "fitted_output_tok_s": "fitted ",
    "output_error_pct": "error % ",
}


def format_fit(found: BenchFit) -> str:
    """Return the whole fit as text; low and high are 95 % intervals."""
    fit = found.fit
    parts = [
        f"fitted: {len(found.fitted)} closed loops, {_errors(found.fitted)}",
        _points(found.fitted),
    ]
    if len(found.held_out):
        parts += [
            f"held out: {len(found.held_out)} closed loops, {_errors(found.held_out)}",
            _points(found.held_out),
        ]
    parts += ["step time θ(M), ms, 95 % intervals", _text(fit.theta(fit.knots()))]
    most = int(fit.points[C].max())
    costs = {"request term α": fit.requests([1, most])} if fit.model.per_request else {}
    if fit.model.draft_power is not None:
        longest = fit.model.max_draft_len
        costs[f"draft of {longest}"] = fit.draft([1, most], longest)
    parts += [
        f"{name}: {_span(table, 0)} ms at R = 1, {_span(table, 1)} ms at R = {most}"
        for name, table in costs.items()
    ]
    if fit.model.max_draft_len:
        parts += ["acceptance, 95 % intervals, bonus included", _text(_lengths(found))]
    parts.append(
        f"noise {fit.noise:.1%} per result; sizes between measured ones {fit.jump:.1%} more; "
        f"roughness {fit.roughness:g} of log θ per octave, chosen by leaving out batch sizes"
    )
    return "\n".join([*parts, *found.notes()])


def _errors(table: pd.DataFrame) -> str:
    found = errors(table)
    text = (
        f"tok/s/user error mean {found['tok_s_user_mean_pct']:.1f} %, "
        f"max {found['tok_s_user_max_pct']:.1f} %"
    )
    if "output_tok_s_mean_pct" in found:
        text += (
            f"; tok/s mean {found['output_tok_s_mean_pct']:.1f} %, "
            f"max {found['output_tok_s_max_pct']:.1f} %"
        )
    return text


def _points(table: pd.DataFrame) -> str:
    shown = table.sort_values([K, C])[list(_SHOWN)].rename(columns=_SHOWN)
    return _text(shown.dropna(axis=1, how="all"))


def _lengths(found: BenchFit) -> pd.DataFrame:
    return found.fit.lengths().rename(
        columns={
            K: "k",
            "low_rate": "low",
            "high_rate": "high",
            "acceptance_length": "length",
            "low_length": "low ",
            "high_length": "high ",
        }
    )


def _span(table: pd.DataFrame, row: int) -> str:
    one = table.iloc[row]
    return f"{one['ms']:.3g} ({one['low_ms']:.3g} to {one['high_ms']:.3g})"


def _text(table: pd.DataFrame) -> str:
    formats: dict[str, Any] = {
        str(column): ("{:+.1f}" if "error" in str(column) else "{:,.4g}").format
        for column in table
        if table[column].dtype.kind == "f"
    }
    return str(table.to_string(index=False, formatters=formats, na_rep="-"))
