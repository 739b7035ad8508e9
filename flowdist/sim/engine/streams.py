"""What is drawn in a simulation, each number from a stream of its own."""

from __future__ import annotations

from flowdist.faults.streams import draw

__all__ = ["draw", "spread"]


def spread(seed: int, entity: str, purpose: str) -> float:
    """A factor from 0.8 to 1.2; seed 0 is nominal."""
    return 0.8 + 0.4 * draw(seed, entity, purpose) if seed else 1.0
