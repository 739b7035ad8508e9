"""transformers' Trainer, whose checkpoints are in the memory of nodes instead of on a disk.

flowdist run examples/frameworks/memory_topology.py -p script=memory_trainer.py --fail trainer/1@step=trainer,12
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from flowdist import worker


class InMemory(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Moves each checkpoint of the Trainer from its folder in /dev/shm to the vault of the node."""

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        worker.snapshot(state.global_step, {path.name: mapped(path) for path in folder.iterdir()})
        shutil.rmtree(args.output_dir)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        worker.progress(state.global_step)


def mapped(path: Path) -> torch.Tensor:
    """Return the bytes of a file, which are copied when the vault takes them."""
    return torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)


def restored(output: Path) -> tuple[int, str | None]:
    """Write the checkpoint of the snapshot into a folder: the files of rank 0, and this rank's random numbers.

    Returns:
        Its step and the folder; 0 and None if there is no snapshot.
    """
    found = worker.restore()
    if found is None:
        return 0, None
    step, mine = found
    _, of_all = worker.restore(rank=0) or found
    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    for name, content in {**of_all, **mine}.items():
        content.numpy().tofile(folder / name)
    return step, str(folder)


class Tokens(Dataset):
    """Random sequences, the same in every process."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(64, (16,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": tokens, "labels": tokens}


class SameSamples(Trainer):  # type: ignore[misc]  # transformers has no types
    samples: worker.Samples
    start = 0

    def get_train_dataloader(self) -> DataLoader[dict[str, torch.Tensor]]:
        sampler = self.samples.sampler(self.start)
        loader = DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator)
        loader.set_epoch = sampler.set_epoch  # type: ignore[attr-defined]  # the Trainer calls it when it resumes
        return loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    me = worker.info()
    output = Path("/dev/shm", f"{me.run_id}-{me.rank}")  # one for each rank: ranks of a node need not share files
    set_seed(1)
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    samples = worker.samples(len(Tokens()), global_batch=16, micro_batch=4, seed=1)
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    settings = TrainingArguments(
        output_dir=str(output),
        max_steps=options.steps,
        per_device_train_batch_size=samples.micro_batch,
        gradient_accumulation_steps=samples.accumulation,
        learning_rate=1e-3,
        logging_steps=5,
        save_steps=5,
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=True,  # DDP then keeps its buckets, and adds in the same order after a restart
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = SameSamples(model, settings, train_dataset=Tokens(), callbacks=[InMemory()])
    shutil.rmtree(output, ignore_errors=True)  # what a killed worker has left
    trainer.samples, (trainer.start, checkpoint) = samples, restored(output)
    if trainer.is_world_process_zero():
        print(f"begins at step {trainer.start}", flush=True)
    trainer.train(resume_from_checkpoint=checkpoint)
    if trainer.is_world_process_zero():
        values = [value.detach() for value in model.parameters()]
        digest = hashlib.sha256(b"".join(value.cpu().numpy().tobytes() for value in values)).hexdigest()
        print(f"final {sum(value.double().square().sum().item() for value in values)} {digest}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    shutil.rmtree(output, ignore_errors=True)
    time.sleep(0.2)  # torch 2.13 can hang if the Trainer is freed within milliseconds of its last collective


if __name__ == "__main__":
    main()
