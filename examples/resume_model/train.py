"""The class of `model.py` in real processes: torch carries what the ranks exchange, flowdist does the rest."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch.distributed as dist
from model import Part, Worker

from flowdist import worker


class PacedWorker(Worker):
    """As fast as a larger model would be."""

    def step(self, step: int) -> Part:
        time.sleep(0.02)
        return super().step(step)


def gather(part: Any) -> list[Any]:
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    me = worker.run(PacedWorker, steps=options.steps, checkpoint_every=10, exchange=gather)
    print(f"state {json.dumps(me.state(), sort_keys=True)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
