"""The switch `conf`: any policy, shown other confidences than the drafter's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import UserError, unknown_name
from dspark_sim.policies.calibration_maps import (
    ConfidenceMap,
    OnlineTemperatures,
    Platt,
    Smoothed,
    Temperatures,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dspark_sim.policies.spec import Spec
    from dspark_sim.policies.view import DraftView, Policy, SchedulerView

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

SOURCES = ("raw", "online-sts", "platt", "ema", "FILE.json")
EMA_WEIGHT = 0.8
"""Weight of the newest confidence: vLLM's `adaptive_verification_ema_alpha`, since removed."""


def with_confidence(spec: Spec, source: str, policy: Policy) -> Policy:
    """Return a policy that reads confidences from `source`, one of `SOURCES`."""
    if not getattr(policy, "needs_confidence", True):
        raise UserError(
            f"policy '{spec.text}': conf changes the drafter's confidences, and {spec.name} reads "
            "none"
        )
    if source == "raw":
        return policy
    gamma = getattr(policy, "max_draft_len", spec.gamma)
    return Calibrated(policy, _map(spec, source, gamma), spec.text, gamma)


def _map(spec: Spec, source: str, gamma: int) -> ConfidenceMap:
    if source == "online-sts":
        return OnlineTemperatures(gamma)
    if source == "platt":
        return Platt(gamma)
    if source == "ema":
        return Smoothed(EMA_WEIGHT)
    if not source.endswith(".json"):
        raise unknown_name("value of conf", source, SOURCES, f"policy '{spec.text}'")
    return Temperatures(_temperatures(spec, source, gamma))


def _temperatures(spec: Spec, source: str, gamma: int) -> Floats:
    """Read T_1..T_γ from the key `temperatures` of SGLang's STS file."""
    try:
        row = json.loads(Path(source).read_text(encoding="utf-8"))
        found = np.array(row["temperatures"], dtype=np.float64)
    except OSError as error:
        raise UserError(
            f"policy '{spec.text}': {source} cannot be read ({error.strerror})"
        ) from None
    except (ValueError, TypeError, KeyError):
        found = np.zeros(0)
    if found.ndim != 1 or len(found) < gamma or not ((found > 0) & np.isfinite(found)).all():
        raise UserError(
            f"policy '{spec.text}': {source} must hold a list 'temperatures' of {gamma} positive "
            "numbers or more, one per draft position"
        )
    return found[:gamma]


class Calibrated:
    """A policy behind a map of confidences; its past, too, is shown as it was mapped.

    Attributes
    ----------
    lossless : bool
        As the policy within: the map for token k reads confidences up to k and older outcomes.
    """

    needs_confidence = True

    def __init__(self, policy: Policy, source: ConfidenceMap, name: str, gamma: int) -> None:
        self.policy, self.name, self.max_draft_len = policy, name, gamma
        self.lossless = bool(getattr(policy, "lossless", True))
        self.believes = str(getattr(policy, "believes", "truth"))
        self._source = source
        self._reported: dict[int, Floats] = {}  # of the last step, by request
        self._shown: dict[int, Floats] = {}  # likewise
        self._past: dict[int, Floats] = {}  # survival of three blocks, newest first

    def draft_lengths(self, view: DraftView) -> Ints:
        """Return draft_len (R,) of the policy within."""
        ask = getattr(self.policy, "draft_lengths", None)
        if ask is None:
            return np.full(view.num_requests, view.max_draft_len)
        answer: Ints = ask(replace(view, history=self._history(view)))
        return answer

    def verify_lengths(self, view: SchedulerView) -> Ints:
        """Learn from the last step, map the confidences, and ask the policy within."""
        self._learn(view)
        history, requests = self._history(view), view.request.tolist()
        none = np.full(view.confidence.shape[1], np.nan)
        before = np.array([self._shown.get(r, none) for r in requests]).reshape(-1, len(none))
        shown = self._source.apply(view.confidence, before)
        fixed = (view.confidence <= 0.0) | (view.confidence >= 1.0)  # not drafted, or certain
        shown = np.where(fixed, view.confidence, shown)
        mapped = replace(view, confidence=shown, history=history)
        self._remember(mapped, view.confidence)
        return self.policy.verify_lengths(mapped)

    def _learn(self, view: SchedulerView) -> None:
        known = np.array([r in self._reported for r in view.request.tolist()], dtype=bool)
        known &= view.last_verify_len > 0
        if known.any():
            reported = np.array([self._reported[r] for r in view.request[known].tolist()])
            self._source.learn(reported, view.last_verify_len[known], view.last_accepted[known])

    def _history(self, view: DraftView) -> Floats:
        """Return the mapped survivals (R, 3, γ), 1 where a request has none or lost them."""
        history = np.ones_like(view.history)
        for row, request in enumerate(view.request.tolist()):
            if view.last_verify_len[row] >= 0 and request in self._past:
                history[row] = self._past[request]
        return history

    def _remember(self, view: SchedulerView, reported: Floats) -> None:
        survival, old = view.survival, view.history
        self._reported, shown, self._past = {}, {}, {}
        for row, request in enumerate(view.request.tolist()):
            if view.draft_len[row] > 0:
                self._reported[request], shown[request] = reported[row], view.confidence[row]
                self._past[request] = np.vstack([survival[row], old[row, :2]])
            else:
                self._past[request] = old[row]
                if request in self._shown:
                    shown[request] = self._shown[request]
        self._shown = shown
