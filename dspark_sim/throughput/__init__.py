"""What a step costs: engine throughput profiles, their lookup rules, files and pictures."""

from dspark_sim.throughput.additive import (
    AdditiveForm,
    additive_form,
    fit_additive,
    with_additive,
)
from dspark_sim.throughput.bench_results import BenchResults, read_results
from dspark_sim.throughput.compare import plot_profiles
from dspark_sim.throughput.files import list_profiles, load_profile, write_profile
from dspark_sim.throughput.fit import fit_results
from dspark_sim.throughput.fit_profile import fitted_profile
from dspark_sim.throughput.formats import (
    ImportOptions,
    batch_size_schedule,
    export_profile,
    import_profile,
    speculative_config,
)
from dspark_sim.throughput.plot import plot_profile
from dspark_sim.throughput.probe import Probed, ProbeSettings, probe_server
from dspark_sim.throughput.probe_report import check_probe_output, write_probe
from dspark_sim.throughput.profile import EngineProfile
from dspark_sim.throughput.step_fit import StepFit
from dspark_sim.throughput.summary import compare_profiles, summarize_profile
from dspark_sim.throughput.tables import CostTables

__all__ = [
    "AdditiveForm",
    "BenchResults",
    "CostTables",
    "EngineProfile",
    "ImportOptions",
    "ProbeSettings",
    "Probed",
    "StepFit",
    "additive_form",
    "batch_size_schedule",
    "check_probe_output",
    "compare_profiles",
    "export_profile",
    "fit_additive",
    "fit_results",
    "fitted_profile",
    "import_profile",
    "list_profiles",
    "load_profile",
    "plot_profile",
    "plot_profiles",
    "probe_server",
    "read_results",
    "speculative_config",
    "summarize_profile",
    "with_additive",
    "write_probe",
    "write_profile",
]
