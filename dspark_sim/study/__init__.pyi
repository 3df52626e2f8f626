from .belief import Doubts, belief_study
from .drafter_memory import DrafterMemory
from .drafters import Comparison, compare_drafters, format_drafters
from .explain import explain, explain_runs, reasons, wide
from .fit_bench import BenchFit, fit_bench, fit_summary, fitted_law, write_fit
from .fit_table import format_fit
from .league import league
from .lossless import check_lossless, format_lossless
from .objective import Objective, parse_objective
from .pareto import compare, frontier, interactivity_at, throughput_at
from .plan import Plan, Planner, plan
from .plot import save_latency, save_load, save_pareto, save_waste
from .plot_belief import save_belief
from .plot_draft_latency import save_draft_latency
from .plot_drafters import save_acceptance_lengths, save_conditional, save_drafters, save_thresholds
from .plot_explain import save_explain
from .plot_league import save_league
from .plot_learning import save_learning_curves
from .plot_plan import save_plan
from .plot_reliability import save_reliability
from .plot_tune import save_tune
from .progress import stage_bar
from .refine import next_concurrency
from .seeds import aggregate, paired_difference
from .slo import Slo
from .sweep import read_sweep, sweep
from .table import format_table
from .tune import Tuned, parameter_values, tune

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
