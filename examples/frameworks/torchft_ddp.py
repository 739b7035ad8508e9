"""torchft's DistributedDataParallel: each replica group is a job of its own, and gets its state from another group.

    torchft_lighthouse --min_replicas 2 --join_timeout_ms 10000 --bind 127.0.0.1:29510
    export TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510
    REPLICA_GROUP_ID=0 flowdist torchrun --max-restarts 3 examples/frameworks/torchft_ddp.py
    REPLICA_GROUP_ID=1 flowdist torchrun --max-restarts 3 examples/frameworks/torchft_ddp.py

The groups wait for each other: with fewer groups, steps would see less data, and end with other values.
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

GROUPS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    group = int(os.environ["REPLICA_GROUP_ID"])
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=GROUPS,
        use_async_quorum=False,  # a group that comes back has the state of the others before its first step
        replica_id=f"group_{group}",
        timeout=timedelta(seconds=30),
        quorum_timeout=timedelta(minutes=5),
    )
    ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    while manager.current_step() < options.steps:
        optimizer.zero_grad()  # waits for all groups; one that is behind gets state and step of another
        step = manager.current_step()
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * GROUPS + group))
        loss = nn.functional.mse_loss(ddp(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()  # nothing changes if a group was lost meanwhile: the step is done again
        if step % 5 == 0:
            print(f"group {group}, step {step}: loss {loss.item():.4f}", flush=True)
    print("final", sum(value.double().square().sum().item() for value in model.parameters()), flush=True)
    manager.shutdown()


if __name__ == "__main__":
    main()
