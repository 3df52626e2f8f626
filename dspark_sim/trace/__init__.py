"""What arrives: request traces, read, written and synthesised."""

from dspark_sim.trace.files import read_trace, write_trace
from dspark_sim.trace.load import list_traces, load_trace
from dspark_sim.trace.plot import plot_trace
from dspark_sim.trace.summary import summarize
from dspark_sim.trace.synthesis import synthesize
from dspark_sim.trace.trace import Trace

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
