"""An OpenAI-compatible server on the loopback, around the engine."""

from dspark_sim.model.server.app import Service
from dspark_sim.model.server.run import Server, listen, serve

__all__ = ["Server", "Service", "listen", "serve"]
