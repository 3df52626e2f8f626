from .calibration import compare_calibration, draw_blocks, fit_held_out
from .law import ParametricAcceptance, geometric, minimum_variance
from .law_file import read_law, write_law
from .load import list_acceptance, load_acceptance, recording_about
from .mixture import MixedAcceptance
from .ratio import ratio_with_error
from .recorded import RecordedAcceptance, read_recording, write_recording
from .replay import Rounds, replay, threshold_lengths
from .responses import (
    Responses,
    acceptance_lengths,
    conditional_acceptance,
    draw_responses,
    sweep_thresholds,
)
from .source import AcceptanceSource
from .temperature import SequentialTemperatureScaling
from .temperature_file import read_temperatures, write_temperatures

__all__ = [
    "AcceptanceSource",
    "MixedAcceptance",
    "ParametricAcceptance",
    "RecordedAcceptance",
    "Responses",
    "Rounds",
    "SequentialTemperatureScaling",
    "acceptance_lengths",
    "compare_calibration",
    "conditional_acceptance",
    "draw_blocks",
    "draw_responses",
    "fit_held_out",
    "geometric",
    "list_acceptance",
    "load_acceptance",
    "minimum_variance",
    "ratio_with_error",
    "read_law",
    "read_recording",
    "read_temperatures",
    "recording_about",
    "replay",
    "sweep_thresholds",
    "threshold_lengths",
    "write_law",
    "write_recording",
    "write_temperatures",
]
