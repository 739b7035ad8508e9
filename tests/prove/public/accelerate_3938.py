"""accelerate#3938: with use_stateful_dataloader and two processes, the state that is saved is one batch behind."""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed

set_seed(7)
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(data, batch_size=6)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

saved = sorted(Path("ckpt").glob("step_*"))
done = 0
if saved:
    accelerator.load_state(str(saved[-1]))
    done = int(saved[-1].name.removeprefix("step_"))
for _ in range(done // len(loader), 3):
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        if done % 6 == 0:
            accelerator.save_state("ckpt/new")
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                Path("ckpt/new").replace(f"ckpt/step_{done:04d}")
            accelerator.wait_for_everyone()
accelerator.end_training()
