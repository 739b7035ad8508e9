"""Random numbers of a simulation, each from a stream of its own."""

from __future__ import annotations

from flowdist.faults.streams import draw

__all__ = ["draw", "spread"]


def spread(seed: int, entity: str, purpose: str) -> float:
    """Return a factor from 0.8 to 1.2, the same for the same arguments; 1 for seed 0, which is nominal."""
    return 0.8 + 0.4 * draw(seed, entity, purpose) if seed else 1.0
