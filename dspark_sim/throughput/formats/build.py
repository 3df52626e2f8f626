"""Turning another program's table into a profile: what it tells, what is assumed, what is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dspark_sim.core import UserError, unknown_name
from dspark_sim.throughput.profile import EngineProfile
from dspark_sim.throughput.schema import ProfileHeader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pandas as pd

USUAL_MAX_NUM_SEQS = 256


@dataclass(frozen=True)
class ImportOptions:
    """What a user says about a table that the table does not.

    Attributes
    ----------
    name : str or None
        Name of the profile; by default the file's.
    keys : mapping
        Keys of profile.toml, which replace what the table tells or what is assumed.
    draft_len : int or None
        Length of the drafts that the table's drafter makes.
    num_layers : int or None
        Layers of the model, for profiles of one layer.
    """

    name: str | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    draft_len: int | None = None
    num_layers: int | None = None

    def count(self, key: str, default: int) -> int:
        """Return a given capacity, or the default."""
        value = self.keys.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{key} must be a whole number of at least 1, got {value!r}")
        return value


@dataclass(frozen=True)
class Tables:
    """The tables of a profile to be."""

    verify: pd.DataFrame
    draft: pd.DataFrame | None = None
    requests: pd.DataFrame | None = None
    prefill: pd.DataFrame | None = None


def build_profile(
    path: Path,
    options: ImportOptions,
    origin: str,
    tables: Tables,
    told: Mapping[str, Any],
    notes: Mapping[str, str],
) -> EngineProfile:
    """Make a profile whose provenance says what came from where.

    Parameters
    ----------
    path : Path
        The file; only its name is recorded.
    options : ImportOptions
    origin : str
        The format, as the provenance shall name it.
    tables : Tables
    told : mapping
        Keys of profile.toml that the file tells.
    notes : mapping
        Further provenance; `method` says how the table is read.
    """
    for key in options.keys:
        if key not in ProfileHeader.model_fields:
            raise unknown_name("key", key, ProfileHeader.model_fields, "the import's settings")
    told = {"engine": origin, **told}
    usual = {
        "model": "not stated",
        "gpu": "not stated",
        "num_gpus": 1,
        "max_num_seqs": USUAL_MAX_NUM_SEQS,
        "kv_tokens": "unlimited",
        "block_size": 16,
    }
    given = {key: value for key, value in options.keys.items() if key != "provenance"}
    assumed = {key: value for key, value in usual.items() if key not in {**told, **given}}
    provenance = {"source": f"{path.name}: {origin}", **notes}
    if assumed:
        provenance["assumed"] = f"Not in the file and therefore assumed: {_listed(assumed)}."
    if given:
        provenance["given"] = f"Given at import: {_listed(given)}."
    provenance |= options.keys.get("provenance", {})
    keys = {"name": options.name or path.stem, **usual, **told, **given}
    if keys["kv_tokens"] == "unlimited":
        keys["kv_tokens"] = None
    return EngineProfile(**keys, provenance=provenance, **vars(tables))


def _listed(keys: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in keys.items())
