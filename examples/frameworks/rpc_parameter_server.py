"""torch.distributed.rpc: rank 0 has the parameters, and the other ranks send it gradients.

flowdist torchrun --nproc-per-node 2 --max-restarts 3 examples/frameworks/rpc_parameter_server.py
torchrun --nproc-per-node 2 examples/frameworks/rpc_parameter_server.py       the same file, unchanged
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed.rpc as rpc
from torch import nn


class Server:
    """The parameters and their optimizer, with a checkpoint of both."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(16, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.step, self.newest = 0, folder / "newest.pt"
        if self.newest.exists():
            saved = torch.load(self.newest, weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step = saved["step"]

    def pull(self) -> tuple[int, dict[str, torch.Tensor]]:
        """Return the step that comes next, and the values for it."""
        return self.step, {name: value.detach().clone() for name, value in self.model.named_parameters()}

    def push(self, gradients: dict[str, torch.Tensor]) -> None:
        """Take one step, and save every fifth."""
        for name, value in self.model.named_parameters():
            value.grad = gradients[name]
        self.optimizer.step()
        self.step += 1
        if self.step % 5 == 0:
            self.save()

    def save(self) -> None:
        """Save under another name first: a file that is called newest.pt is complete."""
        self.newest.parent.mkdir(parents=True, exist_ok=True)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        torch.save(state, self.newest.with_suffix(".new"))
        self.newest.with_suffix(".new").replace(self.newest)


def train(options: argparse.Namespace) -> None:
    server = rpc.remote("rank0", Server, args=(options.folder,))
    model = nn.Linear(16, 1)
    while True:
        step, values = server.rpc_sync().pull()
        if step == options.steps:
            break
        model.load_state_dict(values)
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        server.rpc_sync().push(dict(zip(dict(model.named_parameters()), gradients, strict=True)))
        if step % 5 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    print("final", sum(value.double().square().sum().item() for value in values.values()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # The first call makes an optimizer, for which torch imports 800 modules: on a busy machine 60 s are too short.
    settings = rpc.TensorPipeRpcBackendOptions(rpc_timeout=600)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size, rpc_backend_options=settings)
    if rank == 1:
        train(options)
    rpc.shutdown()


if __name__ == "__main__":
    main()
