"""A rollout actor: it plays episodes with the learner's latest weights, has them scored, and adds them to the buffer.

It is ready once it has acknowledged weights that are fresh enough. When it is killed, the next attempt begins without
any, fetches the latest, and is ready again; the learner notices nothing.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import cart
import wire

from flowdist import worker


def newer(version: int) -> tuple[int, cart.Weights] | None:
    """Return the version and the weights of the learner's latest checkpoint, if they are newer than `version`."""
    path = worker.latest("learner")
    try:
        saved = json.loads(Path(path).read_text()) if path is not None else {"version": -1}
    except FileNotFoundError:  # the learner has published the next one, and removed this one
        return None
    return (saved["version"], saved["weights"]) if saved["version"] != version else None


def main() -> None:
    name, attempt = worker.info().replica, worker.info().attempt
    rng, version, weights = random.Random(f"{name}#{attempt}"), -1, cart.Weights()
    while True:
        if (found := newer(version)) is not None:
            if version < 0:
                print(f"attempt {attempt} begins with version {found[0]}", flush=True)
            version, weights = found
            worker.acknowledge_version(version)
        if version < 0:
            time.sleep(0.05)
            continue
        states, pushes = cart.episode(weights, rng)
        rewards = wire.call("reward", {"states": states})
        episode = {"version": version, "states": states[:-1], "pushes": pushes, "rewards": rewards}
        if wire.call("replay", {"op": "add", "episode": episode}) > 0.5:
            time.sleep(0.05)  # the learner has enough for now


if __name__ == "__main__":
    main()
