"""A job of two roles for tests on Slurm: `data` serves numbers, and `trainer` trains on them with torch.

The training is arithmetic modulo a prime: its result is the same to the last bit, whatever the size of the world, and
however often it has resumed from a checkpoint.
"""

from __future__ import annotations

from pathlib import Path

TOPOLOGY = """
from flowdist import Restart, Topology

def topology(steps: int = 200, replicas: str = "2:3", nodes: str = "2:3"):
    t = Topology("train", nodes=nodes, controller_outage="1m", checkpoint_dir="{folder}/checkpoints")
    data = t.role("data", ["python", "data.py", "${{self.port:rpc}}"], kind="service", ports=["rpc"],
                  ready_when="tcp:rpc", restart=Restart(max_restarts=20))
    t.role("trainer", ["python", "trainer.py", data.addresses("rpc"), str(steps)], replicas=replicas, apart=True,
           depends_on=[data.ready()], restart=Restart(max_restarts=20), state="checkpoint",
           cooldown="0s", join_window="10s")
    return t
"""
DATA = """
import signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
listening = socket.create_server(("", int(sys.argv[1])))
while True:
    connection, _ = listening.accept()
    with connection:
        connection.sendall(" ".join(str(i * i % 9973) for i in range(240)).encode())
"""
TRAINER = """
import json, os, pathlib, socket, sys, time
import torch, torch.distributed as dist
import flowdist.worker as worker
P = 1_000_003
def fetch(address):
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection, connection.makefile() as file:
        return torch.tensor([int(word) for word in file.read().split()])
numbers = fetch(sys.argv[1])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
step, weight = 0, torch.tensor(1)
if (found := worker.latest()) is not None:
    step, weight = json.loads(found.read_text())
    weight = torch.tensor(weight)
print("rank", rank, "of", size, "begins at step", step, flush=True)
while step < int(sys.argv[2]):
    while step + 1 == int(sys.argv[2]) and os.path.exists("hold"):  # a test still waits for what comes before the end
        time.sleep(0.05)
    part = ((numbers[rank::size] * (step + 1) + weight) % P).sum()
    dist.all_reduce(part)
    weight = (weight * 31 + part) % P
    step += 1
    time.sleep(0.05)
    stops = worker.should_stop(step)
    if rank == 0 and (stops or step % 10 == 0 or step == int(sys.argv[2])):
        path = worker.checkpoint_dir() / f"{step}-{os.getpid()}.json"
        path.write_text(json.dumps([step, int(weight)]))
        worker.commit(path, step=step)
    worker.progress(step)
    if stops:
        print("saved and stops at step", step, flush=True)
        dist.destroy_process_group()
        sys.exit(0)
if rank == 0:
    pathlib.Path("result").write_text(str(int(weight)))
dist.destroy_process_group()
"""


def write(folder: Path) -> None:
    """Write the job into the folder, in which its commands run."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "topology.py").write_text(TOPOLOGY.format(folder=folder))
    (folder / "data.py").write_text(DATA)
    (folder / "trainer.py").write_text(TRAINER)


def undisturbed(steps: int) -> int:
    """Return the result of a run without failures, by plain arithmetic."""
    prime, weight = 1_000_003, 1
    numbers = [i * i % 9973 for i in range(240)]
    for step in range(steps):
        weight = (weight * 31 + sum((number * (step + 1) + weight) % prime for number in numbers)) % prime
    return weight
