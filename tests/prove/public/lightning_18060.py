"""Lightning#18060: a checkpoint of every_n_train_steps is saved before the counters of the loop have the last batch."""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torchdata.stateful_dataloader import StatefulDataLoader


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


lightning.seed_everything(7)
x = torch.randn(96, 4)
loader = StatefulDataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    callbacks=[ModelCheckpoint("ckpt", every_n_train_steps=5, save_last=True)],
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(Model(), loader, ckpt_path="last")
