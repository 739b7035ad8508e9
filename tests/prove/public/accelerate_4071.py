"""accelerate#4071: skip_first_batches makes a loader that begins with the order of epoch 0, whatever the epoch is.

As accelerate's guide on checkpoints: load_state, set_epoch, and skip_first_batches for the first epoch.
"""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed

set_seed(7)
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
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
    loader.set_epoch(epoch)
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
