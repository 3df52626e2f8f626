"""DFlash: DSpark's backbone without a sequential head; anchor and γ masks, masks predict."""

from __future__ import annotations

from dspark_sim.model.drafters.dspark import DSpark


class DFlash(DSpark):
    """Block drafter whose positions are drawn independently of each other."""

    masks_only = True
