"""datasets#8145: after map, a state that is loaded goes on up to a thousand rows later."""

from pathlib import Path

import pyarrow
import torch
import torch.distributed as dist
from datasets import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

dist.init_process_group("gloo")
torch.manual_seed(7 + dist.get_rank())
table = pyarrow.table({"x": list(range(96))})
data = Dataset(table, fingerprint="numbers").to_iterable_dataset(num_shards=2).map(lambda row: {"x": row["x"] + 1})
loader = StatefulDataLoader(data, batch_size=4)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)

done = 0
if Path("last.pt").exists():
    state = torch.load("last.pt", weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    done = state["done"]
for batch in loader:
    inputs = batch["x"].float()[:, None]
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sqrt())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    done += 1
    if done % 6 == 0:
        parts = {"model": model, "optimizer": optimizer, "loader": loader}
        torch.save({name: part.state_dict() for name, part in parts.items()} | {"done": done}, "last.pt.tmp")
        Path("last.pt.tmp").replace("last.pt")
