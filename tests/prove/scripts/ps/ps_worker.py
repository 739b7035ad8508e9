"""A trainer: pull weights, push gradients, all trainers in the same step. Trainer 0 completes the saves.

A save is a folder with a file of each trainer and of each server. It is written as ckpt/new and has its own name when
it is complete.
"""

import random
import re
import shutil
import time
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
import torch
from ps_model import names_of, sync_folder, write
from torch import nn

from flowdist import worker

N, BATCH, STEPS, EVERY = 112, 8, 24, 8
OUT = Path("ckpt")


def saved():
    return sorted(d for d in OUT.iterdir() if re.fullmatch(r"step_\d{5}", d.name))


def tidy():
    shutil.rmtree(OUT / "new", ignore_errors=True)
    for old in saved()[:-2]:
        shutil.rmtree(old)


class Servers:
    """The links to all servers; an answer comes when all trainers have asked the same."""

    def __init__(self, *hello):
        addresses = [address.rpartition(":") for address in worker.peers("ps", "rpc")]
        self.links = [Client((host, int(port))) for host, _, port in addresses]
        self.ask([hello] * len(self.links))

    def ask(self, questions):
        for link, question in zip(self.links, questions, strict=True):
            link.send(question)
        return [link.recv() for link in self.links]

    def pull(self):
        weights = {}
        for part in self.ask([("pull",)] * len(self.links)):
            weights |= part
        return weights

    def push(self, gradients, loss):
        parts = [names_of(i, len(self.links)) for i in range(len(self.links))]
        return self.ask([("push", {name: gradients[name] for name in part}, loss) for part in parts])[0]

    def save(self, folder):
        self.ask([("save", str(folder))] * len(self.links))

    def wait(self):
        self.ask([("wait",)] * len(self.links))


def predict(w, x):
    x = nn.functional.dropout((x @ w["w1"] + w["b1"]).tanh(), 0.1)
    x = (x @ w["w2"] + w["b2"]).tanh()
    return x @ w["w3"] + w["b3"]


def save(servers, rank, step, state):
    new = OUT / "new"
    new.mkdir(exist_ok=True)
    write(new / f"trainer{rank}.pt", lambda f: torch.save(state, f))
    servers.save(new)
    if rank == 0:  # all trainers have asked and all servers have answered: every file is there
        sync_folder(new)
        new.replace(OUT / f"step_{step:05d}")
        sync_folder(OUT)
        tidy()
        print("saved step", step, flush=True)
    servers.wait()


def main():
    me = worker.info()
    rank, world = me.role_rank, me.role_world_size
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    g = torch.Generator().manual_seed(5)
    data = torch.randn(N, 8, generator=g)
    target = data.sin().sum(1, keepdim=True) * 0.5
    random.seed(10 + rank)
    torch.manual_seed(20 + rank)
    noise = np.random.default_rng([30, rank])
    step, pos, best = 0, 0, float("inf")
    order = list(range(rank, N, world))
    random.shuffle(order)
    found = saved()
    if found:
        with worker.restoring():
            state = torch.load(found[-1] / f"trainer{rank}.pt", weights_only=False)
        step = state["step"]
        pos = state["pos"]
        order = state["order"]
        best = state["best"]
        random.setstate(state["python"])
        torch.set_rng_state(state["torch"])
        noise.bit_generator.state = state["noise"]
        print("resumed from step", step, flush=True)
    if step >= STEPS:  # the other trainer may be at its end already
        if rank == 0:
            tidy()
        return
    servers = Servers(rank, world, me.generation, str(found[-1]) if found else None)
    if rank == 0:
        tidy()  # no server writes any more, and no trainer writes before the first step
    while step < STEPS:
        if pos + BATCH > len(order):
            random.shuffle(order)
            pos = 0
        mine = order[pos : pos + BATCH]
        pos += BATCH
        x = data[mine] + torch.from_numpy(noise.normal(0, 0.1, (BATCH, 8))).float()
        y = target[mine]
        if random.random() < 0.3:
            x, y = -x, -y
        weights = {name: torch.from_numpy(w).requires_grad_() for name, w in servers.pull().items()}
        loss = nn.functional.mse_loss(predict(weights, x), y)
        loss.backward()
        time.sleep(0.05)  # a larger model
        mean = servers.push({name: w.grad.numpy() for name, w in weights.items()}, loss.item())
        best = min(best, mean)
        step += 1
        worker.progress(step)
        if rank == 0:
            print(f"step {step} loss {mean!r}", flush=True)
        if step % EVERY == 0 or step == STEPS:
            state = {"step": step, "pos": pos, "order": order, "best": best, "python": random.getstate()}
            state |= {"torch": torch.get_rng_state(), "noise": noise.bit_generator.state}
            with worker.saving():
                save(servers, rank, step, state)


if __name__ == "__main__":
    main()
