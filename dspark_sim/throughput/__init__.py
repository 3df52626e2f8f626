"""What a step costs: engine throughput profiles, their lookup rules, files and pictures."""

from dspark_sim.throughput.files import list_profiles, load_profile, write_profile
from dspark_sim.throughput.plot import plot_profile
from dspark_sim.throughput.profile import EngineProfile
from dspark_sim.throughput.summary import summarize_profile
from dspark_sim.throughput.tables import CostTables

__all__ = [
    "CostTables",
    "EngineProfile",
    "list_profiles",
    "load_profile",
    "plot_profile",
    "summarize_profile",
    "write_profile",
]
