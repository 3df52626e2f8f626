"""One length for all from observed acceptance: SmartSpec and vLLM's early dynamic speculation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.policies.batch_length import BatchLength, fastest_length

if TYPE_CHECKING:
    from dspark_sim.policies.spec import Spec
    from dspark_sim.policies.view import DraftView


def read_smartspec(spec: Spec) -> SmartSpec:
    """smartspec[:alpha=0.7,keep=0.85] draws its length from one acceptance rate α."""
    spec.expect(0, 0, "alpha", "keep")
    return SmartSpec(spec)


def read_dsd_online(spec: Spec) -> DsdOnline:
    """dsd-online[:ks=0+1+3+7,keep=0.9] draws its length from acceptance by position."""
    spec.expect(0, 0, "ks", "keep", "alpha")
    return DsdOnline(spec)


class SmartSpec(BatchLength):
    """argmax over k of R (1 − α^(k+1)) / (1 − α) / T(k) (arXiv 2406.14066); ties to the shorter.

    α starts at `alpha` and becomes keep · α + (1 − keep) · accepted / tested after each step that
    verified drafts. A token is tested if all before it were accepted.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.alpha = spec.key("alpha", 0.7, 0.0, 1.0)
        self._keep = spec.key("keep", 0.85, 0.0, 1.0)

    def choose(self, view: DraftView) -> int:
        """Return the length of highest expected goodput."""
        drafted = view.last_verify_len > 0
        accepted = view.last_accepted[drafted]
        tested = np.minimum(accepted + 1, view.last_verify_len[drafted]).sum()
        if tested:
            share = float(accepted.sum() / tested)
            self.alpha = self._keep * self.alpha + (1.0 - self._keep) * share
        lengths = range(self.max_draft_len + 1)
        expected = np.cumsum(np.power(self.alpha, lengths))
        return fastest_length(view, expected, list(lengths))


class DsdOnline(BatchLength):
    """argmax over k of (1 + Σ_{i≤k} a_i) / T(k), a_i the observed acceptance of position i.

    a_i starts at alpha^i and, after each step, becomes keep · a_i + (1 − keep) · the share of
    drafts with at least i tokens verified of which the first i were accepted.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        start = spec.key("alpha", 0.7, 0.0, 1.0)
        self.rates = np.power(start, np.arange(1.0, self.max_draft_len + 1))
        self._keep = spec.key("keep", 0.9, 0.0, 1.0)
        self._lengths = list(range(self.max_draft_len + 1))
        if "ks" in spec.keywords:
            named = {spec.whole("a length of ks", text) for text in spec.keywords["ks"].split("+")}
            self._lengths = sorted({min(k, self.max_draft_len) for k in named})

    def choose(self, view: DraftView) -> int:
        """Return the length of highest expected rate."""
        for i in range(self.max_draft_len):
            tested = view.last_verify_len > i
            if tested.any():
                share = float((view.last_accepted[tested] > i).mean())
                self.rates[i] = self._keep * self.rates[i] + (1.0 - self._keep) * share
        expected = 1.0 + np.concatenate(([0.0], np.cumsum(self.rates)))
        return fastest_length(view, expected, self._lengths)
