"""The learner: REINFORCE on the episodes of the actors, and a new version of the weights after every update.

With torch its two ranks are one DistributedDataParallel world; without torch it is one plain Python process. It commits
each version as a checkpoint, from which the actors read their weights and from which it resumes.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import cart
import wire

from flowdist import worker

EPISODES, RATE = 8, 4.0  # of one update of one rank; learning rate
STALENESS = 1  # versions that an episode may be old: REINFORCE learns from what its own policy does
UPDATE_S = 0.1  # no update is shorter, so that a short example can be watched, and broken


def gradient(weights: cart.Weights, episodes: list[dict[str, Any]]) -> cart.Weights:
    """Return the direction in which the policy gets better: the mean over all pushes of REINFORCE's estimate."""
    found, count = [0.0] * 5, 0
    for episode, better in zip(episodes, cart.advantages([each["rewards"] for each in episodes]), strict=True):
        for state, right, advantage in zip(episode["states"], episode["pushes"], better, strict=True):
            surprise = advantage * (right - cart.goes_right(weights, state))
            for i, value in enumerate((*state, 1.0)):
                found[i] += surprise * value
            count += 1
    return [total / count for total in found]


class Plain:
    """The policy without torch: one process."""

    def __init__(self, weights: cart.Weights) -> None:
        self.weights = weights

    def update(self, episodes: list[dict[str, Any]]) -> None:
        step = gradient(self.weights, episodes)
        self.weights = [weight + RATE * change for weight, change in zip(self.weights, step, strict=True)]


class Distributed:
    """The policy as a torch module in DistributedDataParallel: each rank takes its own episodes."""

    def __init__(self, weights: cart.Weights) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        torch.distributed.init_process_group("gloo")
        self._torch, layer = torch, torch.nn.Linear(4, 1)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([weights[:4]]))
            layer.bias.copy_(torch.tensor(weights[4:]))
        self._layer, self._model = layer, DistributedDataParallel(layer)
        self._optimizer = torch.optim.SGD(layer.parameters(), lr=RATE)

    @property
    def weights(self) -> cart.Weights:
        return [*self._layer.weight.detach().flatten().tolist(), *self._layer.bias.detach().tolist()]

    def update(self, episodes: list[dict[str, Any]]) -> None:
        torch = self._torch
        better = torch.tensor([each for row in cart.advantages([e["rewards"] for e in episodes]) for each in row])
        states = torch.tensor([state for each in episodes for state in each["states"]])
        pushes = torch.tensor([float(push) for each in episodes for push in each["pushes"]])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            self._model(states).flatten(), pushes, weight=better, reduction="mean"
        )
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def publish(version: int, weights: cart.Weights) -> None:
    """Commit the weights as the latest checkpoint, remove the others, and publish the version."""
    path = worker.checkpoint_dir() / f"weights-{version}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        json.dump({"version": version, "weights": weights}, file)
        file.flush()
        os.fsync(file.fileno())
    if worker.commit(path, step=version):
        worker.publish_version(version)
        for other in path.parent.glob("weights-*.json"):  # the one before, and what a killed learner has left
            if other != path:
                other.unlink()


def take(version: int) -> list[dict[str, Any]]:
    """Return episodes for one update, waiting for the actors if there are too few."""
    message = {"op": "take", "count": EPISODES, "oldest": version - STALENESS}
    while not (episodes := wire.call("replay", message)):
        time.sleep(0.01)
    found: list[dict[str, Any]] = episodes
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, required=True)
    updates, info, path = parser.parse_args().updates, worker.info(), worker.latest()
    saved = json.loads(Path(path).read_text()) if path is not None else {"version": 0, "weights": [0.0] * 5}
    version = saved["version"]
    policy = Distributed(saved["weights"]) if info.world_size > 1 else Plain(saved["weights"])
    if path is not None:
        worker.publish_version(version)  # what is committed stays as it is: actors may be reading it
    elif info.rank == 0:
        publish(version, policy.weights)
    while version < updates and not worker.should_stop(version):
        until = time.monotonic() + UPDATE_S
        episodes = take(version)
        policy.update(episodes)
        version += 1
        if info.rank == 0:
            publish(version, policy.weights)
            length = sum(len(each["pushes"]) for each in episodes) / len(episodes)
            print(f"version {version}: the pole stands for {length:.0f} steps", flush=True)
        worker.progress(version)
        time.sleep(max(0.0, until - time.monotonic()))


if __name__ == "__main__":
    main()
