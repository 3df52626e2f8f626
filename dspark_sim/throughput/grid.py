"""A measured grid of verify rows, by batch, requests and context, and the curve it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def mean_by_group(values: Floats, group: NDArray[np.intp], weights: Floats) -> Floats:
    """Return the weighted mean of each group, numbered from 0; `values` may have columns."""
    total = np.bincount(group, weights)
    if values.ndim == 1:
        return np.bincount(group, weights * values) / total
    columns = [mean_by_group(column, group, weights) for column in values.T]
    return np.stack(columns, axis=1) if columns else np.empty((len(total), 0))


def points_by_size(verify: pd.DataFrame, shift_ms: Floats) -> pd.DataFrame:
    """Return one point per batch size: the rows of that size, less their own terms, averaged.

    Parameters
    ----------
    verify : DataFrame
        A profile's verify table, sizes rising.
    shift_ms : array (rows,)
        What of each row's ms belongs to its context and its number of requests.

    Returns
    -------
    DataFrame
        batch_tokens, ms, p10_ms, p90_ms, n. A size measured once is its row. Several rows are
        averaged with weights 1 / ms²: of all costs of the size, the one with the least squares of
        relative error.
    """
    rows = verify[["batch_tokens", "ms", "p10_ms", "p90_ms", "n"]].copy()
    for column in ("ms", "p10_ms", "p90_ms"):
        rows[column] = verify[column].to_numpy() - shift_ms
    sizes, group = np.unique(rows["batch_tokens"].to_numpy(), return_inverse=True)
    if len(sizes) == len(rows):
        return rows
    weights = 1.0 / np.square(verify["ms"].to_numpy())
    means = {
        column: mean_by_group(rows[column].to_numpy(), group, weights)
        for column in ("ms", "p10_ms", "p90_ms")
    }
    counts = np.bincount(group, rows["n"].to_numpy()).astype(np.int64)
    return pd.DataFrame({"batch_tokens": sizes, **means, "n": counts})
