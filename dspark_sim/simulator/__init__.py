"""What happens: the discrete-event engine, its kernels, metrics and results."""

from dspark_sim.simulator.result import Result
from dspark_sim.simulator.simulate import Inputs, simulate

__all__ = ["Inputs", "Result", "simulate"]
