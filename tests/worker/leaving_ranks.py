"""One rank of a world that leaves its group in a collective several times, almost at the same time as the others.

Arguments: the rank, the number of ranks, how many times, and a folder for the stores of the groups.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist

from flowdist.worker.elastic_training import _Generations


def main() -> None:
    rank, ranks, times = map(int, sys.argv[1:4])
    os.environ["WORLD_SIZE"] = str(ranks)
    torch.set_num_threads(1)
    generations = _Generations("gloo")
    init, ones = dist.init_process_group, torch.ones(1)
    for turn in range(times):
        store = dist.FileStore(str(Path(sys.argv[4], str(turn))), ranks)  # needs no look-up of names
        dist.init_process_group = functools.partial(init, store=store, rank=rank, world_size=ranks)
        generations.form()
        leave = threading.Timer(0.002 + turn * 7 % 13 / 1000, generations._break_group)
        try:
            dist.all_reduce(ones)  # all ranks are here
            leave.start()
            while True:
                dist.all_reduce(ones)
        except RuntimeError:
            leave.cancel()  # a peer was first
        generations.leave()
        if leave.ident is not None:
            leave.join()
        generations._let_go()
        print(turn, flush=True)


if __name__ == "__main__":
    main()
