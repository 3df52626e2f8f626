"""Validation: predict published measurements, and say how far off each prediction is.

A case is one module with one function `run(settings) -> Validation`; a further case is one more
line in `CASES`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dspark_sim.core import unknown_name
from dspark_sim.study.validate.case import Check, Point, Settings, Validation
from dspark_sim.study.validate.picture import save_validation
from dspark_sim.study.validate.text import format_validation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "CASES",
    "Check",
    "Point",
    "Settings",
    "Validation",
    "format_validation",
    "save_validation",
    "validate",
]

CASES = {
    "V1": "dspark_sim.study.validate.vllm_policies",
    "V2": "dspark_sim.study.validate.production",
    "V3": "dspark_sim.study.validate.thresholds",
    "V4": "dspark_sim.study.validate.fixed_batch",
    "V5": "dspark_sim.study.validate.real_engine",
    "V6": "dspark_sim.study.validate.theory",
}
"""Case to the module whose `run` carries it out, imported when it is asked for."""


def validate(cases: Sequence[str] = (), settings: Settings | None = None) -> Iterator[Validation]:
    """Run cases, all by default, and give each outcome as it is there.

    Raises
    ------
    UserError
        A name is no case; nothing has run then.
    """
    chosen = [name.upper() for name in cases] or list(CASES)
    for name in chosen:
        if name not in CASES:
            raise unknown_name("case", name, CASES)
    return _outcomes(list(dict.fromkeys(chosen)), settings or Settings())


def _outcomes(chosen: Sequence[str], settings: Settings) -> Iterator[Validation]:
    for name in chosen:
        yield import_module(CASES[name]).run(settings)
