"""Throughput-aware scheduling simulator and profiler for speculative decoding in LLM serving."""

from importlib.metadata import version as _version

from dspark_sim.config import Scenario
from dspark_sim.core import RunError, UserError

__all__ = ["RunError", "Scenario", "UserError", "__version__", "simulate"]

__version__ = _version("dspark-sim")


def __getattr__(name: str) -> object:
    """Load the simulator, and with it Numba, only when it is used."""
    if name == "simulate":
        from dspark_sim.simulator import simulate

        return simulate
    raise AttributeError(f"module 'dspark_sim' has no attribute '{name}'")
