from .result import Result
from .simulate import Inputs, simulate

__all__ = ["Inputs", "Result", "simulate"]
