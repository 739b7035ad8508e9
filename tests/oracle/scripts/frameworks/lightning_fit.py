"""Lightning's Trainer with a tiny module, seeded: losses to the digit. Its import reads RANK."""

import random

random.seed(42)
import lightning.pytorch as pl
import torch

import probe

draws = [random.randint(0, 99) for _ in range(5)]
probe.note("imported", draws=draws)
pl.seed_everything(3, verbose=False)
LOSSES = []


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch[0]).square().mean()
        LOSSES.append(loss.item())
        if len(LOSSES) == 2:
            probe.first_step(losses=list(LOSSES))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)


data = torch.utils.data.TensorDataset(torch.randn(32, 4))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), loader)
probe.done(losses=LOSSES, rank=trainer.global_rank, draws=draws)
