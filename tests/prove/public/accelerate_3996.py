"""accelerate#3996: load_state does not bring back the order of samples; each resume begins with that of epoch 0.

As accelerate's guide on checkpoints, with a save at the end of each epoch and two processes.
"""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

set_seed(7)
accelerator = Accelerator(cpu=True)
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

saved = sorted(Path("ckpt").glob("epoch_*"))
if saved:
    accelerator.load_state(str(saved[-1]))
for epoch in range(len(saved), 4):
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state("ckpt/new")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        Path("ckpt/new").replace(f"ckpt/epoch_{epoch}")
    accelerator.wait_for_everyone()
accelerator.end_training()
