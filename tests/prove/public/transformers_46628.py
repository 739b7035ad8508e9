"""transformers#46628: on a resume within an epoch, the generators are set after the next batches have been fetched.

A dataset that adds noise, as augmentations do, then draws other numbers.
"""

from pathlib import Path

import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments


class Noisy(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(96, 4)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        row = self.x[index]
        return {"inputs": row + 0.1 * torch.randn(4), "labels": row.sum(0, keepdim=True)}


class Model(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(4, 1)
        self.post_init()

    def forward(self, inputs, labels):
        return {"loss": torch.nn.functional.mse_loss(self.layer(inputs), labels)}


torch.manual_seed(7)
settings = TrainingArguments(
    output_dir="out", num_train_epochs=2, per_device_train_batch_size=8, save_steps=5, use_cpu=True, report_to="none"
)
trainer = Trainer(Model(PretrainedConfig()), settings, train_dataset=Noisy())
complete = [path.parent for path in Path("out").glob("checkpoint-*/trainer_state.json")]  # it is written last
last = max(complete, key=lambda path: int(path.name.removeprefix("checkpoint-")), default=None)
trainer.train(resume_from_checkpoint=str(last) if last else None)
