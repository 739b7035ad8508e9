"""accelerate with a tiny model, seeded: losses to the digit."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

import probe

probe.note("imported")
set_seed(7)
accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for inputs, targets in loader:
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    if len(losses) == 1:
        probe.first_step(loss=losses[0])
probe.done(losses=losses, rank=accelerator.process_index)
accelerator.end_training()
