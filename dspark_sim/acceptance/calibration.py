"""Calibration of an acceptance source: fit temperatures on some requests, measure on others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.acceptance.mixture import MixedAcceptance
from dspark_sim.acceptance.recorded import RecordedAcceptance
from dspark_sim.acceptance.reliability import NUM_BINS, calibration_metrics
from dspark_sim.acceptance.replay import where_rounds_begin
from dspark_sim.acceptance.temperature import SequentialTemperatureScaling
from dspark_sim.core import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from dspark_sim.acceptance.source import AcceptanceSource


@dataclass(frozen=True)
class Blocks:
    """Drafted blocks and what became of them.

    confidence (n, γ): conditional acceptance of each draft token as the drafter reports it;
    accepted (n,): accepted length, 0..γ; request (n,): which request each block belongs to.
    """

    confidence: NDArray[np.float64]
    accepted: NDArray[np.int64]
    request: NDArray[np.int64]

    def split(self, held_out: float = 0.5, seed: int = 0) -> tuple[Blocks, Blocks]:
        """Return training and held-out blocks; all blocks of a request are on one side.

        `held_out` is the share of requests that is kept for measuring.
        """
        requests = np.unique(self.request)
        if not 0.0 < held_out < 1.0 or len(requests) < 2:
            raise UserError(
                f"a held-out share of {held_out} of {len(requests)} requests cannot be split off: "
                "the share lies between 0 and 1 and at least 2 requests are needed"
            )
        count = min(max(round(held_out * len(requests)), 1), len(requests) - 1)
        chosen = np.random.default_rng(seed).permutation(requests)[:count]
        aside = np.isin(self.request, chosen)
        return self._where(~aside), self._where(aside)

    def rounds(self) -> Blocks:
        """Return only the blocks drafted when each is verified whole: the next after the bonus.

        Published rates and lengths count these. The first begins at output position 1; every
        request's blocks must be there, in order from position 0.
        """
        return self._where(where_rounds_begin(self.request, self.accepted))

    def _where(self, rows: NDArray[np.bool_]) -> Blocks:
        return Blocks(self.confidence[rows], self.accepted[rows], self.request[rows])


def draw_blocks(
    source: AcceptanceSource,
    num_requests: int = 400,
    num_positions: int = 64,
    draft_len: int | None = None,
    seed: int = 0,
    categories: Sequence[str] | None = None,
) -> Blocks:
    """Return the blocks that a source drafts at every output position of its requests.

    Every position counts once, also those a round of accepted tokens would have skipped. A
    recording gives each of its responses once, from the first position to its end, whatever the
    numbers of requests and positions. `categories` names each request's; without them a mixture
    gives its parts requests in turn.
    """
    if isinstance(source, RecordedAcceptance):
        rows = source.frame.groupby("request_id", sort=True).size()
        source = replace(source, mapping=dict(enumerate(map(str, rows.index))))
        lengths, categories = rows.to_numpy(), None
    elif num_requests < 1 or num_positions < 1:
        raise UserError(
            f"{num_requests} requests and {num_positions} positions give no blocks: "
            "both must be 1 or more"
        )
    else:
        lengths = np.full(num_requests, num_positions)
    if isinstance(source, MixedAcceptance) and categories is None:
        names = [*source.sources, *([] if source.default is None else [""])]
        categories = [names[request % len(names)] for request in range(len(lengths))]
    requests = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.concatenate([np.arange(length) for length in lengths])
    confidence, accepted = source.block(requests, positions, draft_len, seed, categories)
    return Blocks(confidence, accepted, requests)


def fit_held_out(
    blocks: Blocks, dataset: str = "", held_out: float = 0.5, seed: int = 0
) -> tuple[SequentialTemperatureScaling, Blocks]:
    """Fit temperatures on some requests; return them and the blocks of the other requests."""
    train, test = blocks.split(held_out, seed)
    return SequentialTemperatureScaling.fit(train.confidence, train.accepted, dataset), test


def compare_calibration(
    blocks: Blocks, scaling: SequentialTemperatureScaling, num_bins: int = NUM_BINS
) -> pd.DataFrame:
    """Return `calibration_metrics` of blocks before and after scaling, one row per position.

    Columns: position, num_blocks, observed, temperature, then predicted, bias, ece, brier and auc,
    each as `…_before` and `…_after`.
    """
    raw = calibration_metrics(blocks.confidence, blocks.accepted, num_bins)
    new = calibration_metrics(scaling.apply(blocks.confidence), blocks.accepted, num_bins)
    table = raw[["position", "num_blocks", "observed"]].copy()
    table["temperature"] = scaling.temperatures[: len(table)]
    for measure in ("predicted", "bias", "ece", "brier", "auc"):
        table[f"{measure}_before"], table[f"{measure}_after"] = raw[measure], new[measure]
    return table


def calibration_table(
    source: AcceptanceSource,
    scaling: SequentialTemperatureScaling | None = None,
    num_requests: int = 400,
    num_positions: int = 64,
    draft_len: int | None = None,
    seed: int = 0,
    categories: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Return how calibrated a source is, before and after temperatures, on held-out requests.

    The temperatures are fitted on the other half of the requests, unless `scaling` gives them. The
    columns are those of `compare_calibration`, the other parameters those of `draw_blocks`.
    """
    blocks = draw_blocks(source, num_requests, num_positions, draft_len, seed, categories)
    fitted, test = fit_held_out(blocks, source.name, seed=seed)
    return compare_calibration(test, scaling or fitted)
