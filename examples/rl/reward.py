"""The reward service: it scores the states of an episode, as a reward model would."""

from __future__ import annotations

from typing import Any

import cart
import wire

from flowdist import worker


def score(message: dict[str, Any]) -> list[float]:
    """Return a reward for each push: 1 if the pole still stands after it, a little less away from the middle."""
    return [(1.0 - 0.1 * abs(state[0])) if cart.stands(state) else 0.0 for state in message["states"][1:]]


if __name__ == "__main__":
    wire.serve(worker.port("rpc"), score)
