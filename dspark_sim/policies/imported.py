"""A policy of the user's own, `package.module:Name`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_sim.core import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dspark_sim.policies.view import Policy, SchedulerView


class _FunctionPolicy:
    def __init__(self, function: Callable[[SchedulerView], Any]) -> None:
        self.verify_lengths = function


def is_module(name: str) -> bool:
    """Return whether a name is a module that can be imported, or at least looks like one."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    return "." in name or name in sys.modules or importlib.util.find_spec(name) is not None


def imported_policy(module_name: str, attribute: str, num_speculative_tokens: int) -> Policy:
    """Return what a class, an instance or a function of the view stands for."""
    try:
        target = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:
        what = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise UserError(
            f"policy '{module_name}:{attribute}' cannot be imported: {what}{error}"
        ) from error
    if isinstance(target, type):
        parameters = inspect.signature(target).parameters
        takes_gamma = "num_speculative_tokens" in parameters
        given = {"num_speculative_tokens": num_speculative_tokens} if takes_gamma else {}
        try:
            inspect.signature(target).bind(**given)
        except TypeError as error:
            raise UserError(
                f"policy '{module_name}:{attribute}' is made with num_speculative_tokens or with "
                f"nothing, but {error}"
            ) from None
        target = target(**given)
    if hasattr(target, "verify_lengths"):
        return target
    if callable(target):
        return _FunctionPolicy(target)
    raise UserError(
        f"policy '{module_name}:{attribute}' is neither callable nor has it verify_lengths(view)"
    )


def module_file(module_name: str) -> Path | None:
    """Return the source file of a module, None where there is none."""
    try:
        found = importlib.util.find_spec(module_name)
    except ImportError:
        return None
    return Path(found.origin) if found is not None and found.origin is not None else None
