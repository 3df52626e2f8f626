"""Telling α(R), θ(M) and κ apart: least squares on a grid, and what the grid leaves open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.throughput.grid import mean_by_group

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Codes = NDArray[np.intp]

_TELLING = 1e-6


def solve_alpha_and_kappa(
    measured: Floats, kv: Floats, alpha_codes: Codes, theta_codes: Codes, weights: Floats,
    *, kappa: float,
) -> tuple[Floats, float, list[str]]:  # fmt: skip
    """Return α by code, κ and notes; θ is removed by taking every row less its size's mean.

    α is known up to one constant for every part of the grid; `kappa` is kept where the grid
    cannot tell it.
    """
    root = np.sqrt(weights)

    def within(values: Floats) -> Floats:
        centred = values - mean_by_group(values, theta_codes, weights)[theta_codes]
        return (centred.T * root).T

    dummies = within((alpha_codes[:, None] == np.arange(alpha_codes.max() + 1)).astype(float))
    context, target = within(kv), within(measured)
    notes = []
    told = context - dummies @ _solve(dummies, context)
    if np.linalg.norm(told) > _TELLING * np.linalg.norm(kv * root):
        found = float(told @ target / (told @ told))
        if found < 0:
            notes.append(f"kappa came out below zero ({found:.3g} ms per KV token): held at 0")
        kappa = max(0.0, found)
    elif kv.any():
        notes.append(
            "no batch was measured at two contexts that tell kappa from alpha and theta: "
            f"kappa = {kappa:g} is taken as given"
        )
    return _solve(dummies, target - kappa * context), kappa, notes


def _solve(design: Floats, target: Floats) -> Floats:
    """Least squares; of all solutions that fit equally, the smallest."""
    return np.asarray(np.linalg.lstsq(design, target, rcond=None)[0])


def grid_parts(alpha_codes: Codes, theta_codes: Codes) -> Codes:
    """Return a number per α code: equal where batch sizes connect the numbers of requests."""
    lowest = np.arange(int(alpha_codes.max()) + 1)
    while True:
        by_size = np.full(int(theta_codes.max()) + 1, len(lowest))
        np.minimum.at(by_size, theta_codes, lowest[alpha_codes])
        lower = lowest.copy()
        np.minimum.at(lower, alpha_codes, by_size[theta_codes])
        if (lower == lowest).all():
            return np.unique(lowest, return_inverse=True)[1]
        lowest = lower


def settle(
    alpha: Floats, theta: Floats, sizes: NDArray[np.int64], alpha_part: Codes, theta_part: Codes
) -> tuple[Floats, Floats]:
    """Choose the constant of every part: α and θ move against each other, their sums stay.

    The largest part is the reference. Every part whose batch sizes lie within the range of those
    settled before is moved so that its θ lies on theirs in the mean, parts with the more batch
    sizes first. A part beyond all others keeps its own: its smallest α is 0. At last the smallest
    α of all that lie on one θ is 0.
    """
    alpha, theta = alpha.copy(), theta.copy()
    order = np.argsort(-np.bincount(theta_part), kind="stable")
    settled = theta_part == order[0]
    waiting = list(order[1:])
    while waiting:
        low, high = sizes[settled].min(), sizes[settled].max()
        inside = (sizes >= low) & (sizes <= high)
        part = next((one for one in waiting if (inside & (theta_part == one)).any()), None)
        if part is None:
            break
        shared = inside & (theta_part == part)
        curve = np.interp(sizes[shared], sizes[settled], theta[settled])
        offset = np.average(theta[shared] - curve, weights=1.0 / np.square(sizes[shared]))
        theta[theta_part == part] -= offset
        alpha[alpha_part == part] += offset
        settled |= theta_part == part
        waiting.remove(part)
    for group in [[part for part in order if part not in waiting], *([part] for part in waiting)]:
        lowest = alpha[np.isin(alpha_part, group)].min()
        alpha[np.isin(alpha_part, group)] -= lowest
        theta[np.isin(theta_part, group)] += lowest
    return alpha, theta
