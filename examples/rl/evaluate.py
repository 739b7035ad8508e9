"""The evaluator: it plays a few episodes with each version that it meets, and prints how long the pole stands."""

from __future__ import annotations

import random
import time

import cart
from actor import newer

EPISODES = 10


def main() -> None:
    version, rng = -1, random.Random(0)
    while True:
        if (found := newer(version)) is not None:
            version, weights = found
            lengths = [len(cart.episode(weights, rng)[1]) for _ in range(EPISODES)]
            print(f"evaluation of version {version}: {sum(lengths) / EPISODES:.1f} steps", flush=True)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
