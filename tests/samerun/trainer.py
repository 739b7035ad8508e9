"""Train in exact mode, with three or four ranks, or alone under plain python. Rank 0 writes what comes of it."""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from flowdist import worker

STEPS, EVERY = 60, 5
FIRST = 35  # the first four ranks do no further step
FOUR_AGAIN = 40  # three ranks do no further step

out = Path(sys.argv[1])
torch.set_num_threads(1)
if worker.is_managed():
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.GELU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.randn(500, 8)
start = 0
if (path := worker.latest()) is not None:
    state = torch.load(path)
    start = state["step"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
samples = worker.samples(len(data), global_batch=24, micro_batch=2, seed=7)
gradients = worker.Gradients(model, samples, exact=True)


def save(step: int) -> None:
    if worker.info().rank == 0:
        folder = worker.checkpoint_dir()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{step}-{worker.info().generation}.pt"
        with path.open("wb") as file:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
        worker.commit(path, step=step)


were_three = Path("three")
if worker.info().world_size == 3:
    were_three.touch()
for batch in samples.steps(start, STEPS):
    while batch.step == FIRST and worker.info().world_size == 4 and not were_three.exists():
        time.sleep(0.01)
    while batch.step == FOUR_AGAIN and worker.info().world_size == 3 and not worker.should_stop(batch.step):
        time.sleep(0.01)
    if worker.should_stop(batch.step):
        save(batch.step)
        sys.exit()
    for part in batch:
        gradients.add(model(data[part.samples]).square().mean(), part)
    gradients.reduce()
    optimizer.step()
    worker.progress(batch.step + 1)
    if (batch.step + 1) % EVERY == 0:
        save(batch.step + 1)
if worker.info().rank == 0:
    words = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    out.write_text(hashlib.sha256(words).hexdigest())
