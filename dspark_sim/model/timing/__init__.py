"""What a forward pass of a real decoder-only model costs on this machine.

The timing core: it needs torch, numpy and the standard library alone, so that
`python dspark_sim/model/timing --model qwen3-8b` runs on a machine that has nothing else.
"""

from dspark_sim.model.timing.run import VERSION, measure
from dspark_sim.model.timing.settings import Settings
from dspark_sim.model.timing.sizes import MODELS, model_sizes

__all__ = ["MODELS", "VERSION", "Settings", "measure", "model_sizes"]
