"""Real jobs whose scripts report nothing: the steps of their optimizers are counted, and end a recovery."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flowdist.control.protocol.events import ReplicaProgressed, ReplicaStepped
from flowdist.record.journal import Record
from tests.runtime.harness import Job

pytestmark = pytest.mark.real

# A torch that imports at once, with the one function that the counter uses. tests/worker has a test with the real one.
TORCH = {
    "__init__.py": "from torch import compiler, optim\n",
    "compiler.py": "def is_compiling():\n    return False\n",
    "optim/__init__.py": "from torch.optim.optimizer import SGD\n",
    "optim/optimizer.py": """
_hooks = []

def register_optimizer_step_post_hook(hook):
    _hooks.append(hook)

class SGD:
    def step(self):
        for hook in _hooks:
            hook(self, (), {})
""",
}
TOPOLOGY = """
from flowdist import Restart, Topology
t = Topology("steps", nodes=1)
t.role("trainer", script="train.py", preload="torch", restart=Restart("role", max_restarts=1){more})
"""
# The first attempt steps and waits: a fault kills it when its step has been counted. The second one steps after half a
# second. One worker alone needs no store, for which the real torch would be needed.
TRAIN = """
import os, signal, time, torch

again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
time.sleep(0.5 if again else 0)
optimizer = torch.optim.SGD()
for _ in range(3):
    optimizer.step()
if not again:
    signal.pause()
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
BOTH = re.compile(r"incident 1: recovered: re-formed after \S+s, first step after \S+s")


def job(folder: Path, *arguments: str, more: str = "", train: str = TRAIN) -> Job:
    for name, text in TORCH.items():
        (folder / "torch" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "torch" / name).write_text(text)
    (folder / "train.py").write_text(train)
    (folder / "topology.py").write_text(TOPOLOGY.format(more=more))
    return Job(folder, *arguments)


def test_a_script_that_reports_nothing_has_recovered_with_its_first_step(tmp_path: Path) -> None:
    with job(tmp_path, "topology.py", "--fail", "trainer/0@step=trainer,1") as run:
        assert run.finish() == 0, run.text
        assert BOTH.search(run.text), run.text
        summary = json.loads((run.run_dir / "summary.json").read_text())
        events = [line.event for line in run.journal()[1] if isinstance(line, Record)]
    (incident,) = summary["incidents"]
    assert incident["result"] == "recovered" and incident["first_step_s"] > incident["took_s"] + 0.4
    assert "; recovered: re-formed after " in run.text and ", first step after " in run.text
    stepped = [(event.attempt, event.steps) for event in events if isinstance(event, ReplicaStepped)]
    assert stepped == [(1, 1), (2, 1)] and summary["not_reported"] == {"trainer": ["step numbers", "checkpoints"]}


def test_steps_are_not_counted_where_that_is_turned_off(tmp_path: Path) -> None:
    with job(tmp_path, more=", count_steps=False", train=TRAIN.replace("signal.pause()", KILL)) as run:
        assert run.finish() == 0, run.text
        assert not any(isinstance(line.event, ReplicaStepped) for line in run.journal()[1] if isinstance(line, Record))
    assert "incident 1: re-formed after " in run.text and "recovered" not in run.text


def test_a_script_that_reports_its_steps_is_not_counted(tmp_path: Path) -> None:
    train = TRAIN.replace("optimizer = ", "from flowdist import worker\nworker.progress(0)\noptimizer = ")
    train = train.replace("signal.pause()", KILL)
    with job(tmp_path, train=train) as run:
        assert run.finish() == 0, run.text
        events = [line.event for line in run.journal()[1] if isinstance(line, Record)]
    assert any(isinstance(event, ReplicaProgressed) for event in events)
    assert not any(isinstance(event, ReplicaStepped) for event in events)
