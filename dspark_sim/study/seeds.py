"""What several seeds say together: means, 95 % intervals and paired differences of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dspark_sim.core import UserError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

POINT = ["policy", "concurrency", "request_rate"]
REQUIRED = [*POINT, "seed", "tok_s_gpu", "tok_s_user"]


def tidy(runs: pd.DataFrame) -> pd.DataFrame:
    """Check a sweep (one row per run) and add `load`, in the order the policies first appear.

    `load` is the concurrency, or the request rate (requests/s) where concurrency is NaN (open
    loop); it is NaN for a trace replayed at its own times without a stated rate.

    Raises
    ------
    UserError
        A required column is missing, there is no row, or one point holds a seed twice.
    """
    missing = [column for column in REQUIRED if column not in runs.columns]
    if missing:
        raise UserError(
            f"the sweep lacks the column '{missing[0]}'; it must hold {', '.join(REQUIRED)}"
        )
    if runs.empty:
        raise UserError("the sweep holds no run; it must hold at least one")
    frame = runs.assign(
        policy=runs["policy"].astype(str),
        **{name: _as_float(runs[name]) for name in ("concurrency", "request_rate")},
    )
    frame["load"] = frame["concurrency"].fillna(frame["request_rate"])
    for column in ("tok_s_gpu", "tok_s_user"):
        if not pd.api.types.is_numeric_dtype(frame[column]):
            raise UserError(f"the sweep's column '{column}' must hold numbers")
    twice = frame.duplicated([*POINT, "seed"])
    if twice.any():
        first = frame[twice].iloc[0]
        raise UserError(
            f"the sweep holds policy '{first['policy']}' at load {first['load']:g} with seed "
            f"{first['seed']} twice; each policy, load and seed may appear once"
        )
    rank = {policy: index for index, policy in enumerate(frame["policy"].unique())}
    order = frame.assign(rank=frame["policy"].map(rank)).sort_values(
        ["rank", "load", "request_rate", "seed"]
    )
    return order.drop(columns="rank").reset_index(drop=True)


def aggregate(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per policy and load: each metric's mean over seeds and its 95 % interval.

    Every numeric column is a metric. `<metric>_ci95` is the half width of Student's t interval,
    NaN for one seed; NaN values of a metric are left out of both. `n_seeds` counts the runs.
    """
    frame = tidy(runs)
    metrics = [
        column
        for column in frame.select_dtypes(["number", "bool"]).columns
        if column not in (*POINT, "load", "seed")
    ]
    return over_seeds(frame, [*POINT, "load"], metrics, counted="seed")


def paired_difference(runs: pd.DataFrame, metric: str, policy: str, baseline: str) -> pd.DataFrame:
    """Return, per load, how much `metric` of `policy` differs from `baseline`, paired by seed.

    Runs with the same seed share requests and luck, so the interval is that of the mean of the
    per-seed differences (`difference`, in the metric's unit; `difference_pct` relative to the
    baseline, NaN where it is 0) and far narrower than that of two independent means.

    Raises
    ------
    UserError
        A policy or the metric is not in the sweep, or the two share no load and seed.
    """
    frame = tidy(runs)
    if metric not in frame.columns:
        raise unknown_name("metric", metric, frame.select_dtypes("number").columns, "the sweep")
    keys = ["concurrency", "request_rate", "load", "seed"]
    sides = [of_policy(frame, name)[[*keys, metric]] for name in (policy, baseline)]
    pairs = sides[0].merge(sides[1], on=keys, suffixes=("_policy", "_baseline"))
    if pairs.empty:
        raise UserError(
            f"policies '{policy}' and '{baseline}' share no load and seed in the sweep; "
            "a paired difference needs at least one"
        )
    values = pd.DataFrame(pairs[keys])
    values["policy_value"] = pairs[f"{metric}_policy"].astype(float)
    values["baseline_value"] = pairs[f"{metric}_baseline"].astype(float)
    values["difference"] = values["policy_value"] - values["baseline_value"]
    values["difference_pct"] = percent_gain(values["policy_value"], values["baseline_value"])
    metrics = ["policy_value", "baseline_value", "difference", "difference_pct"]
    return over_seeds(values, keys[:-1], metrics, counted="difference")


def over_seeds(
    frame: pd.DataFrame, keys: Sequence[str], metrics: Sequence[str], counted: str
) -> pd.DataFrame:
    """Group `frame` by `keys` (NaN is a key): `n_seeds`, then mean and `_ci95` of each metric.

    `n_seeds` is the number of values of the column `counted` that are not NaN. Groups keep the
    order in which they appear.
    """
    groups = frame.groupby(list(keys), sort=False, dropna=False)
    values = groups[list(metrics)]
    mean = values.mean().astype(float)
    width = values.sem() * t_quantile(values.count() - 1.0, 0.975)
    columns = {"n_seeds": groups[counted].count()}
    for metric in metrics:
        columns[metric] = mean[metric]
        columns[f"{metric}_ci95"] = width[metric]
    return pd.DataFrame(columns).reset_index()


def t_quantile(freedom: Any, probability: float) -> Any:
    """Return Student's t quantile, element by element; SciPy is loaded on the first call."""
    from scipy.special import stdtrit

    return stdtrit(freedom, probability)


def percent_gain(value: pd.Series[float], baseline: pd.Series[float]) -> pd.Series[float]:
    """Return 100 · (value / baseline - 1), NaN where the baseline is 0."""
    return 100.0 * (value / baseline.where(baseline != 0.0, np.nan) - 1.0)


def of_policy(frame: pd.DataFrame, policy: str) -> pd.DataFrame:
    """Return the rows of one policy or say which policies the sweep holds."""
    rows = frame[frame["policy"] == policy]
    if rows.empty:
        raise unknown_name("policy", policy, frame["policy"].unique(), "the sweep")
    return rows


def _as_float(column: pd.Series[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return pd.to_numeric(column).to_numpy(dtype=float, na_value=np.nan)
