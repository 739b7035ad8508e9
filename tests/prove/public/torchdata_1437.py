"""data#1437: a StatefulDataLoader that loads a state of an epoch's end gives no batch in the next epoch."""

from pathlib import Path

import torch
import torch.distributed as dist
from torchdata.stateful_dataloader import StatefulDataLoader

dist.init_process_group("gloo")
torch.manual_seed(7 + dist.get_rank())
x = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = StatefulDataLoader(data, batch_size=8, shuffle=True)

first = 0
if Path("last.pt").exists():
    state = torch.load("last.pt", weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    torch.set_rng_state(state["random"])
    first = state["epoch"]
for epoch in range(first, 4):
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
        "random": torch.get_rng_state(),
        "epoch": epoch + 1,
    }
    torch.save(state, "last.pt.tmp")
    Path("last.pt.tmp").replace("last.pt")
