"""From timings of a real model to an engine profile: tables, lookup rule, additive terms."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dspark_sim.core import RunError, UserError, unknown_name, whole_file
from dspark_sim.model.measured import describe_run
from dspark_sim.throughput import EngineProfile, additive_form, with_additive, write_profile
from dspark_sim.throughput.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dspark_sim.model.timing import Settings
    from dspark_sim.throughput import AdditiveForm

VERSION = 1  # of the timings, as the timing core writes it
TIMINGS = "timings.json"
DRAFTERS = ("block", "autoregressive", "none")
_SPREAD = ["ms", "p10_ms", "p90_ms", "n"]
_LEAST = 0.1


@dataclass(frozen=True, eq=False)
class Measured:
    """A measured profile, its additive form, and how its lookups answer what they were not given.

    `checks` has one row per point that is in no table: kind, num_requests, batch_tokens, lengths,
    measured ms, what the profile says (profile_ms) and error (profile_ms / ms - 1).
    """

    profile: EngineProfile
    form: AdditiveForm | None
    checks: pd.DataFrame


def measure_profile(
    settings: Settings,
    folder: str | Path,
    name: str | None = None,
    drafter: str = "block",
    progress: Callable[[dict[str, Any]], None] = lambda row: None,
) -> Measured:
    """Time a model on this machine and write the profile folder; see `timing.run.measure`."""
    from dspark_sim.model.timing import measure

    _check_drafter(drafter)
    return write_measured(measure(settings, progress), folder, name, drafter)


def read_timings(path: str | Path) -> dict[str, Any]:
    """Read what the timing core wrote, perhaps on another machine."""
    try:
        timings = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{path} is no valid JSON: {error}") from None
    found = timings.get("format") if isinstance(timings, dict) else None
    if found != "dspark-sim timings" or timings.get("version") != VERSION:
        raise UserError(f"{path}: not a file of timings of version {VERSION}")
    return timings


def write_measured(
    timings: dict[str, Any], folder: str | Path, name: str | None = None, drafter: str = "block"
) -> Measured:
    """Write timings as a profile folder, the timings beside its tables."""
    measured = profile_from_timings(timings, name or Path(folder).name, drafter)
    write_profile(measured.profile, folder)
    with whole_file(Path(folder) / TIMINGS) as aside:
        aside.write_text(json.dumps(timings, indent=1) + "\n", encoding="utf-8")
    return measured


def profile_from_timings(timings: Mapping[str, Any], name: str, drafter: str = "block") -> Measured:
    """Build the profile: verify, draft and prefill tables, α(R), κ, overhead and provenance.

    A GPU's sizes are read as captured up to the limit. A CPU captures nothing: a size between two
    measured ones lies on the line between them. α and κ are those of the additive form fitted to
    the grid; where noise makes them exceed a whole step, rows keep them inside.

    Raises
    ------
    RunError
        No batch was timed.
    """
    _check_drafter(drafter)
    points = pd.DataFrame(timings["points"])
    if points.empty or not (points["table"] & points["kind"].eq("verify")).any():
        raise RunError("no batch was timed in the time that was given")
    limit = _capture_limit(points)
    kind, draft, draft_kappa = draft_table(points, drafter, timings["settings"]["contexts"][0])
    verify = _verify_table(points)
    host = points.loc[points["kind"] == "host", "ms"]
    plain = EngineProfile(
        name=name,
        engine=f"dspark-sim timing core on torch {timings['machine']['torch']}",
        model=f"{timings['model']['name']}, random weights",
        gpu=timings["machine"]["name"],
        num_gpus=1,
        dtype=timings["settings"]["dtype"],
        max_num_seqs=_most_requests(verify, draft),
        max_num_batched_tokens=int(verify["batch_tokens"].max()),
        kv_tokens=timings["kv_tokens"] or None,
        capture_limit=limit,
        lookup="captured" if limit else "linear",
        draft_lookup="captured" if limit else "linear",
        overhead_ms=float(host.median()) if len(host) else 0.0,
        draft_context_ms_per_kv_token=draft_kappa,
        drafter=kind,
        provenance={"source": "dspark-sim profile measure"},
        verify=verify,
        draft=draft,
        prefill=_prefill_table(points),
    )
    profile, form = with_terms(plain)
    profile = rounded(profile)
    checks = _checks(points, profile)
    about = describe_run(timings, points, profile, form, checks)
    return Measured(replace(profile, provenance=about), form, checks)


def _check_drafter(name: str) -> None:
    if name not in DRAFTERS:
        raise unknown_name("drafter", name, DRAFTERS)


def _capture_limit(points: pd.DataFrame) -> int | None:
    sizes = points.loc[points["captured"] & points["kind"].eq("verify") & points["table"], "tokens"]
    return int(sizes.max()) if len(sizes) else None


def _verify_table(points: pd.DataFrame) -> pd.DataFrame:
    rows = points[points["kind"].isin(["verify", "mixed"]) & points["table"]]
    table = rows.rename(columns={"tokens": "batch_tokens", "requests": "num_requests"})
    table = table[["batch_tokens", "num_requests", "kv_tokens_read", *_SPREAD, "roofline_ms"]]
    keys = ["batch_tokens", "num_requests", "kv_tokens_read"]
    return table.sort_values(keys).drop_duplicates(keys).reset_index(drop=True)


def draft_table(
    points: pd.DataFrame, drafter: str, context: int
) -> tuple[Any, pd.DataFrame | None, float]:
    """Return the drafter's kind, its table at zero context, and its κ in ms per KV token."""
    rows = points[points["kind"] == f"draft-{drafter}"]
    here = rows[rows["context"] == context]
    if here.empty:
        return "none", None, 0.0
    kappa = min(_slope(rows), (1 - _LEAST) * float((here["ms"] / here["kv_tokens_read"]).min()))
    table = here.rename(columns={"requests": "num_requests"})[
        ["num_requests", "draft_len", *_SPREAD]
    ].copy()
    for column in ("ms", "p10_ms", "p90_ms"):
        table[column] -= kappa * here["kv_tokens_read"]
    longest = table["draft_len"].max()
    reach = table.groupby("draft_len")["num_requests"].transform("max")
    whole = reach >= table.loc[table["draft_len"] == longest, "num_requests"].max()
    table = table[whole].sort_values(["draft_len", "num_requests"])
    return drafter, table.reset_index(drop=True), kappa


def _slope(rows: pd.DataFrame) -> float:
    """Return ms per KV token among drafts that differ in their context alone; at least 0."""
    groups = rows.groupby(["requests", "draft_len"])
    kv = rows["kv_tokens_read"] - groups["kv_tokens_read"].transform("mean")
    ms = rows["ms"] - groups["ms"].transform("mean")
    return max(0.0, float((kv * ms).sum() / (kv**2).sum())) if kv.any() else 0.0


def _prefill_table(points: pd.DataFrame) -> pd.DataFrame | None:
    rows = points[(points["kind"] == "prefill") & (points["context"] == points["tokens"])]
    return rows[["tokens", "ms"]].sort_values("tokens") if len(rows) else None


def _most_requests(verify: pd.DataFrame, draft: pd.DataFrame | None) -> int:
    most = int(verify["num_requests"].max())
    return most if draft is None else min(most, int(draft["num_requests"].max()))


def with_terms(profile: EngineProfile) -> tuple[EngineProfile, AdditiveForm | None]:
    """Return a profile with the α and κ of its additive form, as far as noise leaves room."""
    form = additive_form(profile)
    try:
        return with_additive(profile, form), form
    except UserError:  # noise: the terms leave nothing of some row
        return profile, None


def rounded(profile: EngineProfile) -> EngineProfile:
    """Return a profile in whole nanoseconds, and thousandths of one per KV token."""
    tables = {spec.name: getattr(profile, spec.name) for spec in TABLES}
    return replace(
        profile,
        overhead_ms=round(profile.overhead_ms, 6),
        context_ms_per_kv_token=round(profile.context_ms_per_kv_token, 9),
        draft_context_ms_per_kv_token=round(profile.draft_context_ms_per_kv_token, 9),
        **{name: table.round(6) for name, table in tables.items() if table is not None},
    )


def _checks(points: pd.DataFrame, profile: EngineProfile) -> pd.DataFrame:
    rows = points[points["kind"].isin(["verify", "mixed"]) & ~points["table"]]
    first, last = profile.token_range
    rows = rows[rows["tokens"].between(first, last)]
    requests, tokens, kv = (rows[k].to_numpy() for k in ("requests", "tokens", "kv_tokens_read"))
    said = profile.step_ms(requests, tokens, kv, extend=True) - profile.overhead_ms
    table = rows.rename(columns={"tokens": "batch_tokens", "requests": "num_requests"})
    table = table[["kind", "num_requests", "batch_tokens", "lengths", "ms"]].copy()
    table["profile_ms"] = said
    table["error"] = said / table["ms"] - 1.0
    return table.reset_index(drop=True)
