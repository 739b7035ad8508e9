"""torch.multiprocessing starts processes inside of a rank, with shared tensors."""

import torch
import torch.multiprocessing as mp

import probe


def work(index, shared):
    shared[index] = index + 1


if __name__ == "__main__":
    probe.note("first line")
    shared = torch.zeros(2).share_memory_()
    mp.spawn(work, args=(shared,), nprocs=2)
    probe.first_step(shared=shared.tolist())
