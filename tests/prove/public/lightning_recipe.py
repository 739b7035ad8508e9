"""Lightning as its guides have it: seed_everything, a loader that shuffles, ModelCheckpoint, fit from the last one."""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))

    def training_step(self, batch, _):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


lightning.seed_everything(7)
x = torch.randn(48, 4)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True
)
trainer = lightning.Trainer(
    max_epochs=3,
    accelerator="cpu",
    callbacks=[ModelCheckpoint("ckpt", save_last=True)],
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(Model(), loader, ckpt_path="last")
