"""FSDP2 killed at random moments: flowdist goes on from the memory of nodes, torchrun from DCP's files on a disk.

    python benchmarks/from_memory.py [--runs 10] [--peer-runs 3] [--mb 200] [--seed 0]

Four gloo ranks, two on each of two nodes (a third one is free), have a state of 200 MB: parameters and AdamW's two
moments. Every fifth step it is kept: by flowdist in the memory of two nodes, under torchrun by `dcp.save` in a folder.
Each run loses a rank, with flowdist in turns a node, at a random moment. It has to end with parameters that are equal
to the bit to those of a run that nothing disturbs, and may repeat no more steps than those since the last state but
one. Printed: how many runs did, and the time from the kill to the end of the first step after it, in the median and at
most. Of torchrun the command line has what makes its restarts work in torch 2.13, as in torchrun_restart.py.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

SCRIPT = """
import hashlib, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from flowdist import worker

WIDTH, LAYERS, STEPS, EVERY = 1024, int(sys.argv[1]), 30, 5
in_memory = "FLOWDIST_VAULT" in os.environ
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
Path(f"pid{rank}").write_text(str(os.getpid()))
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
start = 0
if in_memory and (found := worker.restore(mesh=mesh)) is not None:
    start, state = found
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
kept = sorted(Path("kept").glob("*/.metadata"), key=lambda each: int(each.parent.name)) if not in_memory else []
if kept:
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer}
    dcp.load(state, checkpoint_id=kept[-1].parent)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    start = int(kept[-1].parent.name)
log = open("steps", "a") if rank == 0 else None
for step in range(start + 1, STEPS + 1):
    generator = torch.Generator().manual_seed(step * 64 + rank)
    optimizer.zero_grad()
    model(torch.randn(4, WIDTH, generator=generator)).square().mean().backward()
    optimizer.step()
    if log:
        print(start, step, time.time(), file=log, flush=True)
    if step % EVERY == 0 and in_memory:
        worker.snapshot(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    elif step % EVERY == 0:
        of_model, of_optimizer = get_state_dict(model, optimizer)
        dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=f"kept/{step}")
    worker.progress(step)
digest = hashlib.sha256()
for each in model.state_dict().values():
    digest.update(each.full_tensor().numpy().tobytes())
if rank == 0:
    Path("out").write_text(digest.hexdigest())
dist.destroy_process_group()
"""
TOPOLOGY = """
from flowdist import Node, Restart, Snapshots, Topology

t = Topology("sharded", nodes=3 * [Node(cpu=2)])
again, kept = Restart("role", max_restarts=3), Snapshots(copies=2, every=5)
t.role("trainer", ["python", "script.py", "LAYERS"], replicas=4, cpu=1, restart=again, snapshots=kept)
"""
PARAMETER_BYTES, WIDTH, EVERY, STEPS = 12, 1024, 5, 30
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
FLOWDIST = [sys.executable, "-m", "flowdist", "run", "topology.py"]
TIMEOUT_S, POLL_S = 300, 0.001


class End(NamedTuple):
    """What came of a run: its digest (empty: it failed), the time from the kill to the next step, the steps repeated.

    Without a kill, `seconds` is the time from the first step to the last. `words` is what it has printed.
    """

    digest: str
    seconds: float
    repeated: int
    words: str


class Line(NamedTuple):
    """A step of rank 0: at which step its attempt began, the step's number, and when it ended."""

    begun: int
    step: int
    at: float


def lines(folder: Path) -> list[Line]:
    path = folder / "steps"
    found = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [Line(int(begun), int(step), float(at)) for begun, step, at in found]


def run(peer: str, layers: int, target: str, after_s: float) -> End:
    """Run the script once; `after_s` after its first step, kill the `target`: a rank by number, or a node by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        (folder / "topology.py").write_text(TOPOLOGY.replace("LAYERS", str(layers)))
        command = FLOWDIST if peer == "flowdist" else [*TORCHRUN, "--max-restarts", "3", "script.py", str(layers)]
        env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        with (folder / "words").open("w") as words:
            process = subprocess.Popen(command, cwd=folder, env=env, stdout=words, stderr=words)
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not lines(folder) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(POLL_S)
            killed_at = 0.0
            if target:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(after_s)
                    return run(peer, layers, target, after_s / 2)  # it was faster than without a kill
                killed_at = kill(folder, target)
            process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.terminate()
            process.wait()
        text, digest = (folder / "words").read_text(), folder / "out"
        seen = lines(folder)
        before = max([line.step for line in seen if line.at <= killed_at], default=0)
        after = [line for line in seen if line.begun and line.at > killed_at] or seen[-1:]
        repeated = before - after[0].begun if target and after else 0
        seconds = (after[0].at - killed_at if target else seen[-1].at - seen[0].at) if after else 0.0
        return End(digest.read_text() if digest.exists() else "", seconds, repeated, text)


def kill(folder: Path, target: str) -> float:
    """Kill a rank, or all processes of a node, at once; return when (seconds since the epoch)."""
    if target.isdigit():
        pids = [int((folder / f"pid{target}").read_text())]
    else:
        pids = descendants(guardian_of(folder, target))
    at = time.time()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return at


def guardian_of(folder: Path, node: str) -> int:
    """Return the guardian of a node of the run in a folder: the process that has started all others of the node."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_text()
            if "agent.guardian" in command and f'"name":"{node}"' in command and str(folder) in command:
                return int(entry.name)
    raise RuntimeError(f"{node} has no guardian")


def descendants(pid: int) -> list[int]:
    """Return a process and all that it has started, the oldest first."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in descendants(int(child)))]


def chosen(number: int, peer: str, span_s: float, draw: random.Random) -> tuple[str, float]:
    """Return whom a run loses, and how long after its first step: so that at least one state is kept by then."""
    names = ["node0", "node1"]  # those that four replicas of a CPU each are placed on
    of_node = peer == "flowdist" and number % 2 == 1
    return draw.choice(names) if of_node else str(draw.randrange(4)), draw.uniform(0.3, 0.8) * span_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--peer-runs", type=int, default=3)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    layers, draw = max(1, round(options.mb * 1e6 / PARAMETER_BYTES / WIDTH**2)), random.Random(options.seed)
    rows = []
    expected = ""
    for peer, many in (("flowdist", options.runs), ("torchrun", options.peer_runs)):
        if many == 0:
            continue
        end = run(peer, layers, "", 0)
        if not end.digest or end.digest != (expected or end.digest):
            sys.exit(f"without a kill, {peer} ends as {end.digest or 'nothing'}, not as {expected}:\n{end.words}")
        expected, step_s = end.digest, end.seconds / (STEPS - 1)
        found: dict[str, list[End]] = {}
        for number in range(many):
            target, after_s = chosen(number, peer, end.seconds, draw)
            one = run(peer, layers, target, after_s)
            is_good = one.digest == expected and one.repeated < 2 * EVERY
            found.setdefault("rank" if target.isdigit() else "node", []).append(one)
            print(f"{'ok   ' if is_good else 'WRONG'} {peer} {number}: {target} after {after_s:.2f} s: next step after "
                  f"{one.seconds:.3f} s, {one.repeated} steps repeated", flush=True)  # fmt: skip
            if not is_good:
                print(one.words, flush=True)
        for what, ends in found.items():
            equal = sum([one.digest == expected and one.repeated < 2 * EVERY for one in ends])
            times = [one.seconds for one in ends]
            cells = f"{equal} of {len(ends)} | {statistics.median(times):.2f} s | {max(times):.2f} s | {step_s:.2f} s"
            rows.append(f"| {peer} | a {what} | {cells} |")
    print("\n| run by | loses | equal to the bit | next step after | at most | a step takes |")
    print("| --- | --- | --- | --- | --- | --- |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
