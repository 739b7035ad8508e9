"""Process groups at the end of a script: see flowdist.worker.process_groups."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys

import pytest

from tests.choosing import slow

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

# `how` is what `train` does; what is printed at last is what has become of the threads of gloo.
ENDS = """
import atexit, os, sys, time
import torch.distributed
from flowdist import worker
from tests.choosing import slow

def threads():
    return len(os.listdir("/proc/self/task"))

def say():
    end = time.monotonic() + 20
    while "ended" in sys.argv and threads() >= during and time.monotonic() < end:
        time.sleep(0.01)
    print("ended" if threads() < during else "left")

def train(state):
    global during
    during = threads()
    exec(sys.argv[1])

atexit.register(say)
worker.elastic(train, worker.ElasticState(step=0), backend="gloo")
"""


@pytest.mark.parametrize(
    ("how", "code", "groups"),
    [
        *slow([("pass", 0, "ended"), ("sys.exit()", 0, "ended"), ("sys.exit(3)", 3, "ended")]),
        ("raise ValueError", 1, "left"),
    ],
)
def test_the_group_of_elastic_ends_with_a_script_and_an_exception_leaves_it(how: str, code: int, groups: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"}
    command = [sys.executable, "-c", ENDS, how, groups]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert (run.returncode, run.stdout) == (code, f"{groups}\n"), run.stderr


# Each round trains as a script does which destroys its group and then frees its model. Its argument calls keep().
ROUNDS = """
import os, sys, tempfile
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from flowdist.worker import process_groups

def train(name, rank):
    dist.init_process_group("gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        exec(sys.argv[1])
    dist.destroy_process_group()

path = f"{tempfile.mkdtemp()}/store"
torch.set_num_threads(1)
child = os.fork()
store = dist.FileStore(path, 2)
for number in range(100):
    train(str(number), int(child == 0))
if child and os.waitpid(child, 0)[1]:
    sys.exit("the other rank has failed")
"""


@pytest.mark.slow
def test_a_script_that_frees_its_model_after_its_group_does_not_hang() -> None:
    command = [sys.executable, "-c", ROUNDS, "process_groups.keep()"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as script:
        try:
            _, said = script.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
    assert script.returncode == 0, said
