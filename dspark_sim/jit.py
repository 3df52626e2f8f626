"""Numba kernels whose compiled code on disk always belongs to the sources as they are now.

Numba notices a change of the file a kernel stands in, but not of the files it calls into, so an
edited policy would go on running as it was. Compiled code is therefore kept in a folder named by
a hash of all kernel sources, outside the package, which may be read-only. NUMBA_CACHE_DIR, if
set, is obeyed.

Kernels keep no references to arrays and allocate none (`_nrt=False`): a state of twenty arrays
that is handed on costs nothing then, and a kernel that would allocate does not compile.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

    Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_ROOMS = ("acceptance", "policies", "simulator")
_CONSTANTS = (
    "brackets.py",
    "state.py",
    "kernel_policy.py",
    "switches.py",
)  # compiled into the kernels as they stand


def kernel(function: Kernel) -> Kernel:
    """Compile a function with Numba on its first call, or load it from disk."""
    return _compiled(function, forceinline=False)


def kernel_inlined(function: Kernel) -> Kernel:
    """Do as `kernel`, and paste the code into its callers: for what is called once per request."""
    return _compiled(function, forceinline=True)


def _compiled(function: Kernel, forceinline: bool) -> Kernel:
    settings: Any = numba.config
    chosen = settings.CACHE_DIR
    settings.CACHE_DIR = chosen or str(cache_folder())
    options: Any = {
        "cache": True,
        "nogil": True,
        "_nrt": False,
        "error_model": "numpy",
        "forceinline": forceinline,
    }
    try:
        compiled: Any = numba.njit(**options)(function)
    finally:
        settings.CACHE_DIR = chosen
    return cast("Kernel", compiled)


@cache
def cache_folder() -> Path:
    """Return the folder of the compiled code of these sources, created if need be."""
    sources = hashlib.sha256(str(Path(__file__).parent).encode())
    for room in _ROOMS:
        for path in sorted((Path(__file__).parent / room).glob("*.py")):
            text = path.read_bytes()
            if b"@kernel" in text or path.name in _CONSTANTS:
                sources.update(text)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    user = os.getuid() if hasattr(os, "getuid") else 0
    shared = Path(tempfile.gettempdir()) / f"dspark-sim-{user}"
    for base in (Path(home) / "dspark-sim", shared):
        folder = base / sources.hexdigest()[:16]
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(exist_ok=True)
        except OSError:
            continue
        mine = not user or base.stat().st_uid == user  # compiled code is loaded without question
        if mine and os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="dspark-sim-"))


def is_compiled() -> bool:
    """Return whether a run finds its kernels on disk."""
    settings: Any = numba.config
    folder = Path(settings.CACHE_DIR or cache_folder())
    return any(folder.rglob("kernels.begin_step-*.nbi"))
