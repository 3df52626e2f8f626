"""What to conclude: sweeps, Pareto frontiers, comparisons, tables and pictures."""

from dspark_sim.study.lossless import check_lossless, format_lossless
from dspark_sim.study.pareto import compare, frontier, interactivity_at, throughput_at
from dspark_sim.study.plot import save_latency, save_load, save_pareto, save_waste
from dspark_sim.study.plot_reliability import save_reliability
from dspark_sim.study.seeds import aggregate, paired_difference
from dspark_sim.study.sweep import read_sweep, sweep
from dspark_sim.study.table import format_table

__all__ = [
    "aggregate",
    "check_lossless",
    "compare",
    "format_lossless",
    "format_table",
    "frontier",
    "interactivity_at",
    "paired_difference",
    "read_sweep",
    "save_latency",
    "save_load",
    "save_pareto",
    "save_reliability",
    "save_waste",
    "sweep",
    "throughput_at",
]
