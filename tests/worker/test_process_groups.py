"""The process group of elastic() ends with a script that calls sys.exit(): see flowdist.worker.process_groups."""

from __future__ import annotations

import importlib.util
import os
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
