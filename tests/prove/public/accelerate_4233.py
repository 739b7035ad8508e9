"""accelerate#4233: after skip_first_batches, the next epoch has the order of the one that was finished.

As accelerate's examples/by_feature/checkpointing.py.
"""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed

set_seed(7)
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

saved = sorted(Path("ckpt").glob("step_*"))
done = 0
if saved:
    accelerator.load_state(str(saved[-1]))
    done = int(saved[-1].name.removeprefix("step_"))
first, skipped = divmod(done, len(loader))
for epoch in range(first, 3):
    batches = accelerator.skip_first_batches(loader, skipped) if epoch == first and skipped else loader
    for inputs, targets in batches:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        if done % 6 == 0:
            accelerator.save_state("ckpt/new")
            Path("ckpt/new").replace(f"ckpt/step_{done:04d}")
