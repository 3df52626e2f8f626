"""inference-lab's measured step costs: a CSV of whole steps by batch size and verify width."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.core import UserError
from dspark_sim.throughput.additive import fit_additive
from dspark_sim.throughput.formats.build import Tables, build_profile
from dspark_sim.throughput.formats.source import read_csv
from dspark_sim.throughput.formats.terms import draft_len_of

if TYPE_CHECKING:
    from pathlib import Path

    from dspark_sim.throughput.additive import AdditiveForm
    from dspark_sim.throughput.formats.build import ImportOptions
    from dspark_sim.throughput.formats.terms import Floats, Sizes
    from dspark_sim.throughput.profile import EngineProfile

COLUMNS = ("batch_size", "num_draft_tokens", "step_seconds")


def read_steps(path: Path, text: str, options: ImportOptions) -> EngineProfile:
    """Read `batch_size`, `num_draft_tokens` (the verify width: drafts + 1), `step_seconds`.

    A step of R requests and width w verifies M = R w tokens. Steps that draft (w > 1) are split
    into α(R) + θ(M) by least squares; what a plain step (w = 1) costs less is the drafter's time.
    The file's own lookup takes the nearest batch size; here sizes between rows are interpolated.
    """
    rows = _read_rows(path, text)
    wide, plain = rows[rows["width"] > 1], rows[rows["width"] == 1]
    if wide.empty:
        split = _Split(plain[["batch_tokens", "ms"]], None, None)
    else:
        split = _split(fit_additive(wide), plain)
    split.refuse_negative(path)
    longest = int(rows["width"].max()) - 1
    draft = None if split.draft is None else split.draft.assign(draft_len=longest)
    told = {
        "drafter": "none" if wide.empty else "block",
        "draft_in_verify": len(wide) > 0 and plain.empty,
        "lookup": "linear",
        "draft_lookup": "linear",
        "max_num_seqs": int(rows["num_requests"].max()),
        "max_num_batched_tokens": int(rows["batch_tokens"].max()),
    }
    tables = Tables(verify=split.verify, requests=split.requests, draft=draft)
    origin, notes = "inference-lab measured steps", {"method": _method(longest)}
    return _with_error(build_profile(path, options, origin, tables, told, notes), rows)


def _method(longest: int) -> str:
    return (
        "Whole steps by requests and verify width (1 to "
        f"{longest + 1}), split into theta(M) + alpha(R) + draft(R); the drafter is a block "
        "drafter: what a plain step costs less, below the first batch size that tells it the same."
    )


def _read_rows(path: Path, text: str) -> pd.DataFrame:
    """Return num_requests, width, batch_tokens, ms, in rising order."""
    cells: dict[tuple[int, int], float] = {}
    for row in read_csv(path.name, COLUMNS, text):
        key = row.whole("batch_size"), row.whole("num_draft_tokens")
        if key in cells:
            raise UserError(f"{row.where}: batch_size {key[0]} with width {key[1]} is given twice")
        cells[key] = 1000.0 * row.number("step_seconds", above=True)
    frame = pd.DataFrame([(*key, ms) for key, ms in sorted(cells.items())])
    frame.columns = pd.Index(["num_requests", "width", "ms"])
    frame["batch_tokens"] = frame["num_requests"] * frame["width"]
    return frame


@dataclass(frozen=True)
class _Split:
    """What steps consist of, as the tables of a profile."""

    verify: pd.DataFrame
    requests: pd.DataFrame | None
    draft: pd.DataFrame | None

    def refuse_negative(self, path: Path) -> None:
        """Raise where nothing is left for verification."""
        worst = self.verify.iloc[int(np.argmin(self.verify["ms"].to_numpy()))]
        if worst["ms"] <= 0:
            raise UserError(
                f"{path.name}: these steps are no sum of terms of the batch size and of the "
                f"tokens: {worst['ms']:.3g} ms would be left for {worst['batch_tokens']:.0f} tokens"
            )


def _split(form: AdditiveForm, plain: pd.DataFrame) -> _Split:
    """Take the drafter's time out of α, where plain steps tell it."""
    requests, alpha = form.alpha["num_requests"].to_numpy(), form.alpha["ms"].to_numpy()
    tokens = form.theta["batch_tokens"].to_numpy()
    theta = form.theta["ms"].to_numpy() + form.bias_ms
    if plain.empty:
        return _Split(_frame("batch_tokens", tokens, theta), _alpha(requests, alpha), None)
    own, plain_ms = plain["num_requests"].to_numpy(), plain["ms"].to_numpy()
    less_theta = plain_ms - np.interp(own, tokens, theta)
    inside = (own >= tokens[0]) & (own <= tokens[-1])
    told = inside & np.isin(own, requests)
    saved = np.maximum(np.interp(own[told], requests, alpha) - less_theta[told], 0.0)
    draft = np.interp(requests, own[told], saved) if told.any() else np.zeros(len(requests))
    alone = inside & ~told  # never seen drafting
    requests, order = np.unique(np.append(requests, own[alone]), return_index=True)
    alpha = np.append(alpha - draft, less_theta[alone])[order]
    draft = np.append(draft, np.full(alone.sum(), draft[-1]))[order]
    theta, alpha = theta + alpha.min(), alpha - alpha.min()
    below = own < tokens[0]
    first = plain_ms[below] - np.interp(own[below], requests, alpha)
    return _Split(
        _frame("batch_tokens", np.append(own[below], tokens), np.append(first, theta)),
        _alpha(requests, alpha),
        _frame("num_requests", requests, draft),
    )


def _alpha(requests: Sizes, alpha: Floats) -> pd.DataFrame | None:
    return _frame("num_requests", requests, alpha) if alpha.any() else None


def _frame(column: str, sizes: Sizes, ms: Floats) -> pd.DataFrame:
    return pd.DataFrame({column: sizes, "ms": ms})


def _with_error(profile: EngineProfile, rows: pd.DataFrame) -> EngineProfile:
    """Note how far the profile is from the file's own steps."""
    requests, width = rows["num_requests"].to_numpy(), rows["width"].to_numpy()
    length = np.where(profile.drafter == "none", 0, width - 1)
    step = profile.step_ms(requests, requests * width, 0, requests * (length > 0), length, True)
    error = np.abs(step / rows["ms"].to_numpy() - 1.0)
    worst = int(np.argmax(error))
    note = (
        f"The split misses the file's steps by at most {error[worst]:.2%} "
        f"(batch size {requests[worst]}, width {width[worst]})."
    )
    return replace(profile, provenance={**profile.provenance, "residuals": note})


def steps_csv(profile: EngineProfile, draft_len: int | None, context: int) -> str:
    """Return a profile's whole steps for 1, 2, 4, … requests and every width up to γ + 1.

    Steps of width 1 do not draft. Batches beyond the profile are left out.
    """
    length = draft_len_of(profile, draft_len)
    requests = _batch_sizes(profile, length)
    first, last = profile.token_range
    last = min(last, profile.max_num_batched_tokens)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for size in requests:
        for width in range(1, length + 2):
            if first <= size * width <= last:
                drafting = size if width > 1 else 0
                ms = profile.step_ms(size, size * width, size * context, drafting, width - 1)
                writer.writerow([size, width, float(ms) / 1000.0])
    if out.getvalue().count("\n") == 1:
        raise UserError(
            f"profile '{profile.name}': verify.csv covers {first} to {last} batch tokens, which "
            f"{requests[-1]} requests of width 1 to {length + 1} do not reach"
        )
    return out.getvalue()


def _batch_sizes(profile: EngineProfile, length: int) -> list[int]:
    """Return powers of two and the largest number of requests, as far as the tables reach."""
    sizes = [2**power for power in range(profile.max_num_seqs.bit_length())]
    wanted = np.unique([*sizes, profile.max_num_seqs])
    inside = ~(profile.outside_requests(wanted, length) | profile.outside_requests(wanted, 0))
    return [int(size) for size in wanted[inside]]
