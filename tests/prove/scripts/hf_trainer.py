"""transformers' Trainer: it goes on from the newest checkpoint with the mark `complete`, which is written when all the
ranks have written theirs; folders without it are put away before the start."""

import argparse
import os
import re
import shutil
import time

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Copying(torch.utils.data.Dataset):
    def __init__(self, n=208):
        half = torch.randint(1, 32, (n, 6), generator=torch.Generator().manual_seed(13))
        self.ids = torch.cat([half, half], 1)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def saved(out):
    found = [int(m[1]) for d in os.listdir(out) if (m := re.fullmatch(r"checkpoint-(\d+)", d))]
    return sorted(n for n in found if os.path.exists(f"{out}/checkpoint-{n}/complete"))


def prune(out):
    for n in saved(out)[:-2]:  # not by save_total_limit: that goes by time, and a folder half removed is the youngest
        os.rename(f"{out}/checkpoint-{n}", f"{out}/old-{n}")
        shutil.rmtree(f"{out}/old-{n}")


class Marks(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        dist.barrier()  # the other ranks write their random states
        folder = f"{args.output_dir}/checkpoint-{state.global_step}"
        if state.is_world_process_zero:
            for name in os.listdir(folder):
                with open(f"{folder}/{name}", "rb") as f:
                    os.fsync(f.fileno())
            with open(f"{folder}/complete.tmp", "w") as f:
                f.write("yes")
                f.flush()
                os.fsync(f.fileno())
            os.replace(f"{folder}/complete.tmp", f"{folder}/complete")
            prune(args.output_dir)
            print("saved step", state.global_step, flush=True)
        dist.barrier()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']!r}", flush=True)


class Averaged(TrainerCallback):
    """The mean of the weights over time; it is written next to the model and read from there."""

    def __init__(self, model, start):
        self.mean = {k: v.clone() for k, v in model.state_dict().items()}
        if start:
            self.mean = torch.load(f"{start}/mean.pt")

    def on_step_end(self, args, state, control, model=None, **kwargs):
        for k, v in model.state_dict().items():
            self.mean[k].lerp_(v, 0.1)

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            torch.save(self.mean, f"{args.output_dir}/checkpoint-{state.global_step}/mean.pt")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", default="ckpt")
    args.add_argument("--steps", type=int, default=30)
    args.add_argument("--every", type=int, default=8)
    args = args.parse_args()
    torch.set_num_threads(1)
    os.makedirs(args.out, exist_ok=True)
    setup = TrainingArguments(
        output_dir=args.out, max_steps=args.steps, save_steps=args.every, save_total_limit=None, logging_steps=1,
        per_device_train_batch_size=8, learning_rate=0.01, warmup_steps=4, lr_scheduler_type="cosine", seed=21,
        use_cpu=True, ddp_backend="gloo", report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    if setup.process_index == 0:
        for d in os.listdir(args.out):
            if d.startswith("old-") or (d.startswith("checkpoint-") and int(d[11:]) not in saved(args.out)):
                shutil.rmtree(f"{args.out}/{d}")
        prune(args.out)
    dist.barrier()
    set_seed(21 + setup.process_index)
    found = saved(args.out)
    start = f"{args.out}/checkpoint-{found[-1]}" if found else None
    if start:
        print("resumed from step", found[-1], flush=True)
    sizes = dict(vocab_size=32, n_positions=12, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(5)
    model = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1))
    trainer = Trainer(model, setup, train_dataset=Copying(), callbacks=[Averaged(model, start), Marks()])
    if not found or found[-1] < args.steps:
        trainer.train(resume_from_checkpoint=start)
    dist.barrier()
    time.sleep(0.02)  # gloo's threads come to rest; torn down at once they now and then wait for the GIL for ever


if __name__ == "__main__":
    main()
