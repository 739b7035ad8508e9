"""A small character GPT with DistributedDataParallel, on the text of Python's documentation topics.

    flowdist run examples/char_gpt/topology.py --fail trainer/1@step=trainer,120
    torchrun --nproc-per-node 2 examples/char_gpt/train.py --steps 100       the same file, unchanged

Checkpoint and resume: model, optimizer and the position in the data. Every rank loads the checkpoint that was committed
last; who has none takes it from DDP's first broadcast.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

from flowdist import worker

CONTEXT, WIDTH, HEADS, LAYERS = 64, 96, 4, 3


class Block(nn.Module):
    """Attention to earlier characters, then a two-layer perceptron, each on a normalised residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, time, WIDTH]"""
        batch, time, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time, WIDTH))
        return x + self.mlp(self.norm2(x))


class CharGPT(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, time] of character numbers; returns logits [batch, time, characters]."""
        positions = torch.arange(x.shape[1], device=x.device)
        hidden: torch.Tensor = self.blocks(self.tokens(x) + self.places(positions))
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


class Data:
    """The text as character numbers, the last tenth held out. Batches follow from the step alone."""

    def __init__(self) -> None:
        text = "\n".join(topics[name] for name in sorted(topics))
        self.characters = sorted(set(text))
        number = {character: i for i, character in enumerate(self.characters)}
        everything = torch.tensor([number[character] for character in text])
        split = len(everything) * 9 // 10
        self.train, self.held_out = everything[:split], everything[split:]

    def batch(self, step: int, size: int, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's share of the global batch of a step: the same text whatever the world size is."""
        starts = torch.randint(len(self.train) - CONTEXT - 1, (size,), generator=torch.Generator().manual_seed(step))
        return self._cut(self.train, starts[rank::world_size])

    def validation(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cut(self.held_out, torch.arange(0, 64) * ((len(self.held_out) - CONTEXT - 1) // 64))

    @staticmethod
    def _cut(text: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        at = starts[:, None] + torch.arange(CONTEXT + 1)
        return text[at][:, :-1], text[at][:, 1:]


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="of all ranks together")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps")
    options = parser.parse_args()
    device = pick_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Data()
    model = CharGPT(len(data.characters)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = resume(model, optimizer, device)
    ddp = DistributedDataParallel(model)
    if rank == 0:
        tidy()  # every rank has loaded: DDP has waited for it
    say(rank, f"{world_size} workers, from step {step}, validation loss {validate(model, data, device):.3f}")
    while step < options.steps:
        x, y = (part.to(device) for part in data.batch(step, options.batch, rank, world_size))
        loss = nn.functional.cross_entropy(ddp(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        worker.progress(step)
        if step % options.checkpoint_every == 0 or step == options.steps:
            say(rank, f"step {step}: loss {loss.item():.3f}, validation loss {validate(model, data, device):.3f}")
            if rank == 0:
                save(model, optimizer, step)
            dist.barrier()
    say(rank, "sample: " + repr(sample(model, data, device, "The following ", 120)))
    dist.destroy_process_group()


def pick_device() -> torch.device:
    """A GPU of its own for each worker, else the CPU: NCCL refuses two ranks on one GPU."""
    local_rank, workers = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.is_available() and torch.cuda.device_count() >= workers:
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Complete on the disk first, then committed: a crash in between leaves the one before as the latest."""
    folder = worker.checkpoint_dir() / "char_gpt"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step}-of-generation-{worker.info().generation}.pt"
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)  # its name is on the disk, too
    os.close(descriptor)
    if worker.commit(path, step=step):
        tidy()


def tidy() -> None:
    """Only the latest stays: not the one before, and none that a kill has left without a commit."""
    latest = worker.latest()
    for path in (worker.checkpoint_dir() / "char_gpt").glob("step-*"):
        if latest is None or path.name != latest.name:
            path.unlink(missing_ok=True)


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """The step of the latest checkpoint, on every rank the same; 0 without one."""
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # a new run of torchrun begins anew
    path: Path | None = worker.latest() if worker.is_managed() or restarted else None
    chosen = [str(path) if path is not None else None]
    dist.broadcast_object_list(chosen, src=worker.info().source_rank, device=device)
    if chosen[0] is None:
        return 0
    saved = torch.load(chosen[0], map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


@torch.no_grad()
def validate(model: nn.Module, data: Data, device: torch.device) -> float:
    x, y = (part.to(device) for part in data.validation())
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()


@torch.no_grad()
def sample(model: nn.Module, data: Data, device: torch.device, prompt: str, length: int) -> str:
    """The most likely characters drawn at a temperature of 0.7, from a fixed seed."""
    generator = torch.Generator().manual_seed(1)
    numbers = [data.characters.index(character) for character in prompt]
    for _ in range(length):
        x = torch.tensor([numbers[-CONTEXT:]], device=device)
        chances = nn.functional.softmax(model(x)[0, -1].cpu() / 0.7, dim=0)
        numbers.append(int(torch.multinomial(chances, 1, generator=generator)))
    return "".join(data.characters[number] for number in numbers)


def say(rank: int, text: str) -> None:
    if rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
