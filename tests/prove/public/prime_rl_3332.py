"""prime-rl#3332: the iterator is made before the state is loaded; with a worker process, the data begins anew.

prime-rl is not on the package index: these are the calls of its SFT loop, in their order, with torchdata's loader.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torchdata.stateful_dataloader import StatefulDataLoader

dist.init_process_group("gloo")
torch.manual_seed(7 + dist.get_rank())
x = torch.randn(96, 4)
loader = StatefulDataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, num_workers=1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
batches = iter(loader)

done = 0
if Path("last.pt").exists():
    state = torch.load("last.pt", weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    done = state["done"]
while done < 20:
    inputs, targets = next(batches)
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    done += 1
    if done % 5 == 0:
        parts = {"model": model, "optimizer": optimizer, "loader": loader}
        torch.save({name: part.state_dict() for name, part in parts.items()} | {"done": done}, "last.pt.tmp")
        Path("last.pt.tmp").replace("last.pt")
dist.destroy_process_group()
