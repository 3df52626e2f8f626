"""What a drafter takes from the KV cache: its weights once, its own KV for every token."""

from __future__ import annotations

from dataclasses import dataclass

from dspark_sim.core import UserError

GIB = 2**30


@dataclass(frozen=True)
class DrafterMemory:
    """Memory of a drafter beside its target, over all GPUs of one replica.

    Parameters
    ----------
    weights_gib : float
        The drafter's weights.
    kv_bytes, target_kv_bytes : float
        KV bytes per token of the drafter and of the target.
    """

    weights_gib: float
    kv_bytes: float
    target_kv_bytes: float

    def __post_init__(self) -> None:
        if not (self.weights_gib >= 0 and self.kv_bytes >= 0 and self.target_kv_bytes > 0):
            raise UserError(
                "drafter memory needs weights_gib and kv_bytes of 0 or more and target_kv_bytes "
                f"above 0, got {self.weights_gib:g}, {self.kv_bytes:g}, {self.target_kv_bytes:g}"
            )

    def kv_tokens(self, alone: int) -> int:
        """Return the KV capacity in tokens with the drafter, from that of the target alone.

        >>> DrafterMemory(weights_gib=1, kv_bytes=0, target_kv_bytes=2**20).kv_tokens(4096)
        3072
        """
        left = alone * self.target_kv_bytes - self.weights_gib * GIB
        tokens = int(left / (self.target_kv_bytes + self.kv_bytes))
        if tokens < 1:
            raise UserError(
                f"the drafter's {self.weights_gib:g} GiB leave nothing of kv_tokens = {alone}"
            )
        return tokens
