"""The replay buffer: actors add episodes, learners take those that are not too old. What it holds is lost with it."""

from __future__ import annotations

from collections import deque
from typing import Any

import wire

from flowdist import worker

EPISODES_MAX = 64


class Replay:
    """The newest episodes. Each is taken once."""

    def __init__(self) -> None:
        self.episodes: deque[dict[str, Any]] = deque(maxlen=EPISODES_MAX)

    def answer(self, message: dict[str, Any]) -> Any:
        """Answer `add` with the share of the buffer that is full; `take` with `count` episodes, or with none yet."""
        if message["op"] == "add":
            self.episodes.append(message["episode"])
            return len(self.episodes) / EPISODES_MAX
        fresh = [episode for episode in self.episodes if episode["version"] >= message["oldest"]]
        self.episodes = deque(fresh, EPISODES_MAX)
        if len(self.episodes) < message["count"]:
            return []
        return [self.episodes.pop() for _ in range(message["count"])]  # the newest ones


if __name__ == "__main__":
    wire.serve(worker.port("rpc"), Replay().answer)
