"""transformers' Trainer with a tiny model, seeded: losses to the digit."""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

import probe

probe.note("imported")
set_seed(5)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        words = (torch.arange(8) * (index + 1)) % 16
        return {"input_ids": words, "labels": words}


class Watch(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            probe.first_step(draw=torch.rand(1).item())


model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2))
arguments = TrainingArguments(
    output_dir=os.path.join(os.environ["TMPDIR"], "out"),
    per_device_train_batch_size=4,
    max_steps=3,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    seed=5,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Data(), callbacks=[Watch()])
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
probe.done(losses=losses, weights=sum(weight.double().sum().item() for weight in model.parameters()))
