"""What to conclude: sweeps, Pareto frontiers, comparisons, tables and pictures."""

from dspark_sim.study.belief import Doubts, belief_study
from dspark_sim.study.drafter_memory import DrafterMemory
from dspark_sim.study.drafters import Comparison, compare_drafters, format_drafters
from dspark_sim.study.explain import explain, reasons, wide
from dspark_sim.study.explain import read_runs as explain_runs
from dspark_sim.study.fit_bench import BenchFit, fit_bench, fit_summary, fitted_law, write_fit
from dspark_sim.study.fit_table import format_fit
from dspark_sim.study.league import league
from dspark_sim.study.lossless import check_lossless, format_lossless
from dspark_sim.study.objective import Objective, parse_objective
from dspark_sim.study.pareto import compare, frontier, interactivity_at, throughput_at
from dspark_sim.study.plan import Plan, Planner, plan
from dspark_sim.study.plot import save_latency, save_load, save_pareto, save_waste
from dspark_sim.study.plot_belief import save_belief
from dspark_sim.study.plot_draft_latency import save_draft_latency
from dspark_sim.study.plot_drafters import (
    save_acceptance_lengths,
    save_conditional,
    save_drafters,
    save_thresholds,
)
from dspark_sim.study.plot_explain import save_explain
from dspark_sim.study.plot_league import save_league
from dspark_sim.study.plot_learning import save_learning_curves
from dspark_sim.study.plot_plan import save_plan
from dspark_sim.study.plot_reliability import save_reliability
from dspark_sim.study.plot_tune import save_tune
from dspark_sim.study.progress import stage_bar
from dspark_sim.study.refine import next_concurrency
from dspark_sim.study.seeds import aggregate, paired_difference
from dspark_sim.study.slo import Slo
from dspark_sim.study.sweep import read_sweep, sweep
from dspark_sim.study.table import format_table
from dspark_sim.study.tune import Tuned, parameter_values, tune

__all__ = [
    "BenchFit",
    "Comparison",
    "Doubts",
    "DrafterMemory",
    "Objective",
    "Plan",
    "Planner",
    "Slo",
    "Tuned",
    "aggregate",
    "belief_study",
    "check_lossless",
    "compare",
    "compare_drafters",
    "explain",
    "explain_runs",
    "fit_bench",
    "fit_summary",
    "fitted_law",
    "format_drafters",
    "format_fit",
    "format_lossless",
    "format_table",
    "frontier",
    "interactivity_at",
    "league",
    "next_concurrency",
    "paired_difference",
    "parameter_values",
    "parse_objective",
    "plan",
    "read_sweep",
    "reasons",
    "save_acceptance_lengths",
    "save_belief",
    "save_conditional",
    "save_draft_latency",
    "save_drafters",
    "save_explain",
    "save_latency",
    "save_league",
    "save_learning_curves",
    "save_load",
    "save_pareto",
    "save_plan",
    "save_reliability",
    "save_thresholds",
    "save_tune",
    "save_waste",
    "stage_bar",
    "sweep",
    "throughput_at",
    "tune",
    "wide",
    "write_fit",
]
