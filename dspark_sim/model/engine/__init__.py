"""A small, real serving engine: continuous batching with speculative decoding, in torch."""

from dspark_sim.model.engine.engine import Engine
from dspark_sim.model.engine.loop import EngineRun, run_closed_loop
from dspark_sim.model.engine.report import Output, StepReport
from dspark_sim.model.engine.schedule import Limits, Request, Sampling
from dspark_sim.model.engine.startup import startup_profile

__all__ = [
    "Engine",
    "EngineRun",
    "Limits",
    "Output",
    "Request",
    "Sampling",
    "StepReport",
    "run_closed_loop",
    "startup_profile",
]
