from .files import read_trace, write_trace
from .load import list_traces, load_trace
from .plot import plot_trace
from .summary import summarize
from .synthesis import synthesize
from .trace import Trace

__all__ = [
    "Trace",
    "list_traces",
    "load_trace",
    "plot_trace",
    "read_trace",
    "summarize",
    "synthesize",
    "write_trace",
]
