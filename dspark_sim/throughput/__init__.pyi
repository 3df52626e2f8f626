from .additive import AdditiveForm, additive_form, fit_additive, with_additive
from .bench_results import BenchResults, read_results
from .compare import plot_profiles
from .files import list_profiles, load_profile, write_profile
from .fit import fit_results
from .fit_profile import fitted_profile
from .formats import (
    ImportOptions,
    batch_size_schedule,
    export_profile,
    import_profile,
    speculative_config,
)
from .plot import plot_profile
from .probe import Probed, ProbeSettings, probe_server
from .probe_report import check_probe_output, write_probe
from .profile import EngineProfile
from .step_fit import StepFit
from .summary import compare_profiles, summarize_profile
from .tables import CostTables

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
