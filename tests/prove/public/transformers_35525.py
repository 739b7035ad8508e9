"""transformers#35525: a kill in a save leaves a folder that get_last_checkpoint chooses, and that cannot be loaded.

The lines of the examples of transformers that find the last checkpoint.
"""

from pathlib import Path

import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Model(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(4, 1)
        self.post_init()

    def forward(self, inputs, labels):
        return {"loss": torch.nn.functional.mse_loss(self.layer(inputs), labels)}


torch.manual_seed(7)
x = torch.randn(64, 4)
data = [{"inputs": row, "labels": row.sum(0, keepdim=True)} for row in x]
settings = TrainingArguments(
    output_dir="out", num_train_epochs=2, per_device_train_batch_size=8, save_steps=4, use_cpu=True, report_to="none"
)
trainer = Trainer(Model(PretrainedConfig()), settings, train_dataset=data)
last = get_last_checkpoint(settings.output_dir) if Path(settings.output_dir).is_dir() else None
trainer.train(resume_from_checkpoint=last)
