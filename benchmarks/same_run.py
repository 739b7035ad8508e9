"""What the same samples and exact gradients cost in a step, beside DistributedDataParallel.

Usage: python benchmarks/same_run.py [--ranks N] [--steps N] [--parts N]

Each rank trains a small network of which a step takes some 20 ms, in turn with DDP, with `worker.Gradients`, and with
its exact mode. The ratios are of the median times of a step. Also: what `samples.steps()` itself takes in a step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WIDTH, MICRO = 512, 16


def measure(ranks: int, steps: int, parts: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from flowdist import worker

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers)
    ddp = DistributedDataParallel(torch.nn.Sequential(*layers))
    data = torch.randn(1000, WIDTH)
    samples = worker.samples(1000, global_batch=parts * MICRO, micro_batch=MICRO)
    plain = worker.Gradients(model, samples)
    exact = worker.Gradients(model, samples, exact=True)

    def with_ddp(batch: Any) -> None:
        ddp.zero_grad()
        for part in batch.parts:
            ddp.require_backward_grad_sync = part.is_last
            (ddp(data[part.samples]).square().mean() * ranks / parts).backward()

    def with_gradients(gradients: worker.Gradients) -> Callable[[Any], None]:
        def step(batch: Any) -> None:
            for part in batch.parts:
                gradients.add(model(data[part.samples]).square().mean(), part)
            gradients.reduce()

        return step

    kinds = {"DDP": with_ddp, "Gradients": with_gradients(plain), "exact": with_gradients(exact)}
    times: dict[str, list[float]] = {name: [] for name in [*kinds, "samples"]}
    for number in range(steps):
        began = time.perf_counter()
        (batch,) = samples.steps(number, number + 1)
        list(batch)
        times["samples"].append(time.perf_counter() - began)
        for name, step in kinds.items():
            dist.barrier()
            began = time.perf_counter()
            step(batch)
            times[name].append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        medians = {name: statistics.median(each[5:]) for name, each in times.items()}
        count = sum(each.numel() for each in model.parameters())
        print(f"{ranks} ranks, {parts} micro-batches of {MICRO}, {count:,} parameters")
        for name, each in medians.items():
            print(f"  {name:10} {each * 1e3:7.2f} ms  {each / medians['DDP']:6.3f} of DDP")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--parts", type=int, default=8)
    options = parser.parse_args()
    if "RANK" in os.environ:
        measure(options.ranks, options.steps, options.parts)
        return
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "XDG_CACHE_HOME": folder}
        words = [sys.executable, "-m", "flowdist", "torchrun", "--nproc-per-node", str(options.ranks)]
        script = str(Path(__file__).resolve())
        subprocess.run([*words, script, *sys.argv[1:]], check=True, cwd=folder, env=env)


if __name__ == "__main__":
    main()
