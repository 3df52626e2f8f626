"""What to measure and how far to go, with the device's own defaults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from dspark_sim.core import UserError
from dspark_sim.model.timing.drafting import drafter_weights
from dspark_sim.model.timing.grid import Scope, cpu_scope, gpu_scope
from dspark_sim.model.timing.sizes import model_sizes

if TYPE_CHECKING:
    from dspark_sim.model.timing.sizes import ModelSizes

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Settings:
    """What to measure and how far to go; what is None or empty takes the device's default.

    Parameters
    ----------
    model, device : see `MODELS`; "cpu" or "cuda"
    dtype : float32 on a CPU, bfloat16 on a GPU
    quick : few points, under a minute on 2 cores for the smallest model
    max_seconds : of the whole run; the least needed points are left out
    contexts : KV positions of a request after the step, the main one first
    max_requests : most requests that decode at once
    draft_len : γ, the longest draft
    capture_limit : largest batch with a CUDA graph
    layers : how many run; fewer than the model has are scaled up, and the result says so
    """

    model: str
    device: str = "cpu"
    dtype: str = ""
    quick: bool = False
    max_seconds: float = 0.0
    contexts: tuple[int, ...] = ()
    max_requests: int = 0
    draft_len: int = 7
    capture_limit: int = 1024
    layers: int = 0
    seed: int = 0

    @property
    def number(self) -> torch.dtype:
        """The kind of number that the model computes with."""
        return DTYPES[self.dtype]

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return torch.empty(0, dtype=self.number).element_size()

    def filled(self) -> Settings:
        """Return these settings with defaults in the gaps; raise UserError for what cannot be."""
        gpu, depth = self.device == "cuda", model_sizes(self.model).num_layers
        contexts = (2048, 512, 8192) if gpu else (512, 128, 2048)
        settings = replace(
            self,
            dtype=self.dtype or ("bfloat16" if gpu else "float32"),
            max_seconds=self.max_seconds or (42.0 if self.quick else 1200.0),
            contexts=tuple(self.contexts) or contexts[: 2 if self.quick else 3],
            max_requests=self.max_requests or (256 if gpu else 16 if self.quick else 32),
            layers=self.layers or depth,
        )
        settings._check(depth)
        return settings

    def _check(self, depth: int) -> None:
        if self.dtype not in DTYPES:
            raise UserError(f"dtype must be one of {', '.join(DTYPES)}, not '{self.dtype}'")
        for name in ("max_seconds", "max_requests", "draft_len", "layers"):
            if not getattr(self, name) >= 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.layers > depth:
            raise UserError(f"{self.model} has {depth} layers, layers cannot be {self.layers}")
        if self.capture_limit < 8:
            raise UserError(f"capture_limit must be at least 8 tokens, got {self.capture_limit}")
        least = 2 * (1 + self.draft_len)
        if min(self.contexts) < least:
            raise UserError(
                f"contexts must be at least {least} tokens for a draft of {self.draft_len}, "
                f"got {min(self.contexts)}"
            )

    def scope(self, free: int) -> tuple[Scope, int]:
        """Return how far to go with so many free bytes, and the KV tokens an engine could hold.

        Of the free memory a GPU gives nine tenths, a CPU six. Raises UserError where the model
        does not fit.
        """
        sizes, gpu = model_sizes(self.model), self.device == "cuda"
        usable = (0.9 if gpu else 0.6) * free
        drafters = drafter_weights(sizes)
        needed = self.itemsize * (sizes.weights_of(self.layers) + drafters)
        if needed > usable:
            raise UserError(
                f"{self.model} needs {needed / 2**30:.1f} GiB in {self.dtype} and "
                f"{usable / 2**30:.1f} GiB can be used: take a smaller dtype or fewer layers"
            )
        weights = self.itemsize * (sizes.weights_of(sizes.num_layers) + drafters)
        capacity = (usable - weights) / self._kv_bytes(sizes, sizes.num_layers)
        held = int(0.85 * (usable - needed) / self._kv_bytes(sizes, self.layers))
        shape = (self.quick, self.draft_len, self.contexts, self.max_requests)
        if gpu:
            return gpu_scope(*shape, self.capture_limit, held), max(0, int(capacity))
        return cpu_scope(*shape, held), max(0, int(capacity))

    def _kv_bytes(self, sizes: ModelSizes, layers: int) -> int:
        """Bytes of one token's keys and values, those of both drafters included."""
        return self.itemsize * sizes.kv_numbers * (layers + sizes.draft_layers + 1)
