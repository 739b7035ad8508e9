"""FSDP2 that loses ranks and nodes: flowdist goes on from the memory of nodes, torchrun from DCP's files on a disk.

    python benchmarks/from_memory.py [--runs 10] [--losses 5] [--peer-runs 1] [--mb 200] [--seed 0]
                                     [--kinds rank,node,nodes]

Four gloo ranks, two on each of two nodes (two more are free), have a state of 200 MB: parameters and AdamW's two
moments. Every third step it is kept: by flowdist in the memory of two nodes, under torchrun by `dcp.save` in a folder.
With flowdist, a checkpoint is written on the disk every tenth step, too.

Each run has several losses in turn, each at a random moment between two states. A rank is killed, or all processes of
its node, or those of all nodes, which leaves the disk alone. Of torchrun only ranks are killed. A run has to end with
parameters that are equal to the bit to those of a run that nothing disturbs, and no loss may cost more steps than those
since the last state but one.

Printed for each kind: how many losses were in runs that did, and the times from the loss until training goes on (the
state is loaded) and until the first step has ended. Of torchrun the command line has what makes its restarts work in
torch 2.13, as in torchrun_restart.py.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SCRIPT = """
import hashlib, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from flowdist import worker

WIDTH, LAYERS, STEPS, EVERY, ON_DISK = map(int, sys.argv[1:])
in_memory = "FLOWDIST_VAULT" in os.environ
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
Path(f"pid{rank}").write_text(str(os.getpid()))
with torch.device("meta"):
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to_empty(device="cpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)


def newest():
    folders = sorted((each.parent for each in Path("kept").glob("*/.metadata")), key=lambda each: int(each.name))
    return folders[-1] if folders else None


def save(step):
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=f"kept/{step}")


if in_memory and (found := worker.restore(mesh=mesh)) is not None:
    start, state = found
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
elif (path := worker.latest() if in_memory else newest()) is not None:
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    start = int(Path(path).name)
else:
    start = 0
    torch.manual_seed(0)
    for layer in model:
        for name, whole in torch.nn.Linear(WIDTH, WIDTH).named_parameters():
            getattr(layer, name).data.copy_(distribute_tensor(whole.detach(), mesh, [Shard(0)]))
log = open("steps", "a") if rank == 0 else None
for step in range(start + 1, STEPS + 1):
    if log and step == start + 1:
        print(os.getpid(), start, start, time.time(), file=log, flush=True)
    generator = torch.Generator().manual_seed(step * 64 + rank)
    optimizer.zero_grad()
    model(torch.randn(4, WIDTH, generator=generator)).square().mean().backward()
    optimizer.step()
    if log:
        print(os.getpid(), start, step, time.time(), file=log, flush=True)
    if in_memory:
        worker.snapshot(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    if step % (ON_DISK if in_memory else EVERY) == 0:
        save(step)
        worker.commit(f"kept/{step}", step=step)
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

t = Topology("sharded", nodes=4 * [Node(cpu=2)])
again, kept = Restart("role", max_restarts=100, backoff="0s"), Snapshots(copies=2, every=EVERY)
t.role("trainer", ["python", "script.py", WORDS], replicas=4, cpu=1, placement="pack", restart=again, snapshots=kept)
"""
PARAMETER_BYTES, WIDTH, EVERY, ON_DISK, STEPS_PER_LOSS = 12, 1024, 3, 10, 6
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "--max-restarts"]
FLOWDIST = [sys.executable, "-m", "flowdist", "run", "topology.py"]
KINDS = {"rank": "a rank", "node": "a node", "nodes": "all nodes at once"}
TIMEOUT_S, POLL_S = 300, 0.001


class Loss(NamedTuple):
    """A loss: its kind, and what followed: seconds until training went on and until its first step, steps repeated."""

    kind: str
    on_s: float
    step_s: float
    repeated: int

    @property
    def is_good(self) -> bool:
        return self.repeated < (ON_DISK if self.kind == "nodes" else EVERY) + EVERY


class End(NamedTuple):
    """What came of a run: its digest (empty: it failed), its losses, what a step takes, and what it has printed."""

    digest: str
    losses: list[Loss]
    step_s: float
    words: str


class Line(NamedTuple):
    """What rank 0 says: its process, the step it began with, the steps that are done, and when that was."""

    pid: int
    begun: int
    step: int
    at: float


class Run:
    """A run in a folder, under flowdist or torchrun."""

    def __init__(self, folder: Path, peer: str, layers: int, steps: int) -> None:
        self.folder = folder
        words = [str(each) for each in (WIDTH, layers, steps, EVERY, ON_DISK)]
        (folder / "script.py").write_text(SCRIPT)
        quoted = ", ".join(f'"{word}"' for word in words)
        (folder / "topology.py").write_text(TOPOLOGY.replace("WORDS", quoted).replace("EVERY", str(EVERY)))
        command = FLOWDIST if peer == "flowdist" else [*TORCHRUN, "100", "script.py", *words]
        env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        with (folder / "words").open("w") as output:
            self.process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
        self._deadline = time.monotonic() + TIMEOUT_S

    def lines(self) -> list[Line]:
        path = self.folder / "steps"
        found = [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [Line(int(pid), int(begun), int(step), float(at)) for pid, begun, step, at in found]

    def wait(self, pid: int, steps: int) -> list[Line]:
        """Wait until a generation whose rank 0 is not `pid` has done so many steps, and return its lines.

        None at all if the run ends before, or the time is up.
        """
        while self.process.poll() is None and time.monotonic() < self._deadline:
            lines = self.lines() if (self.folder / "steps").exists() else []
            if lines and lines[-1].pid != pid:
                own = [line for line in lines if line.pid == lines[-1].pid]
                if own[-1].step >= own[0].step + steps:
                    return own
            time.sleep(POLL_S)
        return []

    def lose(self, kind: str, rank: int) -> float:
        """Kill a rank, its node or all nodes, and return when."""
        match kind:
            case "rank":
                pids = [self._pid(rank)]
            case "node":
                pids = descendants(guardian_of(self._pid(rank)))
            case _:
                guardians = [pid for pid in descendants(self.process.pid) if is_guardian(pid)]
                pids = [each for guardian in guardians for each in descendants(guardian)]
        at = time.time()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return at

    def _pid(self, rank: int) -> int:
        return int((self.folder / f"pid{rank}").read_text())

    def end(self) -> tuple[str, str]:
        """Wait for the end; return the digest and what the run has printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(1.0, self._deadline - time.monotonic()))
        self.process.terminate()
        self.process.wait()
        digest = self.folder / "out"
        return digest.read_text() if digest.exists() else "", (self.folder / "words").read_text()


def is_guardian(pid: int) -> bool:
    """Return whether a process has started all others of its node."""
    return b"agent.guardian" in Path(f"/proc/{pid}/cmdline").read_bytes()


def guardian_of(pid: int) -> int:
    """Return the guardian of the node of a process."""
    while not is_guardian(pid):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def descendants(pid: int) -> list[int]:
    """Return a process and all that it has started, the oldest first."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in descendants(int(child)))]


def run(peer: str, layers: int, steps: int, kinds: list[str], draw: random.Random, usual_s: float = 0.0) -> End:
    """Run the script once, with losses of these kinds; each comes within `EVERY` steps after a state was kept."""
    with tempfile.TemporaryDirectory() as name:
        job, losses, pid = Run(Path(name), peer, layers, steps), [], 0
        try:
            for kind in kinds:
                before = job.wait(pid, EVERY + 1)
                if not before:
                    break
                pid = before[-1].pid
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.process.wait(draw.uniform(0, EVERY * usual_s))
                    break
                at = job.lose(kind, draw.randrange(4))
                done = [line.step for line in job.lines() if line.pid == pid and line.at <= at]
                after = job.wait(pid, 1)
                if not after:
                    break
                losses.append(Loss(kind, after[0].at - at, after[1].at - at, max(done) - after[0].begun))
        finally:
            digest, words = job.end()
        times = [later.at - line.at for line, later in itertools.pairwise(job.lines())]
        return End(digest, losses, statistics.median(times), words)


def rows(name: str, ends: list[End], expected: str, step_s: float) -> Iterator[str]:
    """Return the lines of the table for the runs of one peer."""
    for kind, what in KINDS.items():
        losses = [(loss, end.digest == expected and loss.is_good) for end in ends for loss in end.losses]
        of_kind = [(loss, is_good) for loss, is_good in losses if loss.kind == kind]
        if not of_kind:
            continue
        on, steps = ([getattr(loss, each) for loss, _ in of_kind] for each in ("on_s", "step_s"))
        cells = [f"{sum(is_good for _, is_good in of_kind)} of {len(of_kind)}"]
        cells += [f"{statistics.median(times):.2f} s | {max(times):.2f} s" for times in (on, steps)]
        yield f"| {name} | {what} | {' | '.join(cells)} | {step_s:.2f} s |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--losses", type=int, default=5, help="in each run")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of losses, in turns")
    parser.add_argument("--peer-runs", type=int, default=1)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    layers, draw = max(1, round(options.mb * 1e6 / PARAMETER_BYTES / WIDTH**2)), random.Random(options.seed)
    steps = STEPS_PER_LOSS * (options.losses + 1)
    table: list[str] = []
    expected = ""
    for peer, many in (("flowdist", options.runs), ("torchrun", options.peer_runs)):
        if many == 0:
            continue
        undisturbed = run(peer, layers, steps, [], draw)
        expected = expected or undisturbed.digest
        if not expected or undisturbed.digest != expected:
            sys.exit(f"without a loss, {peer} ends as {undisturbed.digest or 'nothing'}:\n{undisturbed.words}")
        turns, ends = itertools.cycle(options.kinds.split(",") if peer == "flowdist" else ["rank"]), []
        for number in range(many):
            kinds = list(itertools.islice(turns, options.losses))
            end = run(peer, layers, steps, kinds, draw, undisturbed.step_s)
            ends.append(end)
            is_good = end.digest == expected and all(loss.is_good for loss in end.losses)
            losses = ", ".join(f"{loss.kind} {loss.on_s:.2f} s" for loss in end.losses)
            print(f"{'ok   ' if is_good else 'WRONG'} {peer} {number}: {losses}", flush=True)
            if not is_good:
                print(end.losses, end.words, sep="\n", flush=True)
        table += rows(peer, ends, expected, undisturbed.step_s)
    print(
        "\n| run by | loses | equal to the bit | goes on after | at most | first step after | at most | a step takes |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(table))


if __name__ == "__main__":
    main()
