"""transformers' Trainer with samples that are the same with 1, 2 and 4 ranks, before and after a resume.

flowdist torchrun --nproc-per-node 2 --max-restarts 3 examples/frameworks/samples_trainer.py
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from flowdist import worker


class Tokens(Dataset):
    """Random sequences, the same in every process."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(64, (16,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": tokens, "labels": tokens}


class SameSamples(Trainer):  # type: ignore[misc]  # transformers has no types
    samples: worker.Samples

    def get_train_dataloader(self) -> DataLoader[dict[str, torch.Tensor]]:
        sampler = self.samples.sampler()
        loader = DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator)
        loader.set_epoch = sampler.set_epoch  # type: ignore[attr-defined]  # the Trainer calls it when it resumes
        return loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()
    set_seed(1)
    sizes: dict[str, float] = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    sizes |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # random numbers are those of a rank here
    samples = worker.samples(len(Tokens()), global_batch=16, micro_batch=4, seed=1)
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    settings = TrainingArguments(
        output_dir=str(options.folder),
        max_steps=options.steps,
        per_device_train_batch_size=samples.micro_batch,
        gradient_accumulation_steps=samples.accumulation,
        learning_rate=1e-3,
        logging_steps=5,
        save_steps=5,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = SameSamples(model, settings, train_dataset=Tokens())
    trainer.samples = samples
    trainer.train(resume_from_checkpoint=newest_checkpoint(options.folder))
    if trainer.is_world_process_zero():
        print("final", sum(value.double().square().sum().item() for value in model.parameters()), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    time.sleep(0.2)  # torch 2.13 can hang if the Trainer is freed within milliseconds of its last collective


def newest_checkpoint(folder: Path) -> str | None:
    """Return the newest checkpoint that is complete: the Trainer writes trainer_state.json last."""
    complete = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return str(max(complete, key=lambda path: int(path.name.removeprefix("checkpoint-")))) if complete else None


if __name__ == "__main__":
    main()
