"""Versions between real processes (R23): an actor with old weights is not ready before it has new ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.harness import Job

pytestmark = pytest.mark.real

TOPOLOGY = """
from flowdist import Restart, Topology

t = Topology("versions")
learner = t.role("learner", ["python", "learner.py"], cpu=0.1)
again = Restart("replica", max_restarts=1)
edge = learner.version(max_staleness=2)
t.role("actor", ["python", "actor.py"], cpu=0.1, primary=False, restart=again, versions=edge)
"""
WAIT = """
import sys, time
from pathlib import Path
from flowdist import worker

def wait(name):
    while not Path(name).exists():
        time.sleep(0.02)

"""
LEARNER = WAIT + 'worker.publish_version(5)\nwait("stop")\n'
ACTOR = (
    WAIT
    + """
if worker.info().attempt == 1:
    worker.acknowledge_version(3)
    wait("die")
    sys.exit(3)
worker.acknowledge_version(1)
wait("go")
worker.acknowledge_version(5)
wait("never")
"""
)


def test_an_actor_that_comes_back_with_old_weights_is_not_ready_before_it_has_new_ones(tmp_path: Path) -> None:
    for name, text in (("topology", TOPOLOGY), ("learner", LEARNER), ("actor", ACTOR)):
        (tmp_path / f"{name}.py").write_text(text)
    with Job(tmp_path, "topology.py") as job:
        job.until("actor/0: ready with version 3 of learner")
        (tmp_path / "die").touch()
        job.until("actor/0 is not ready: it has version 1 of learner; the latest is 5, and max_staleness=2")
        command = [sys.executable, "-m", "flowdist", "status", "--json"]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, text=True)
        (versions,) = json.loads(said.stdout)["versions"]
        assert (versions["published"], versions["replicas"]) == (5, {"actor/0": 1})
        assert versions["waiting"] == {"actor/0": "it has version 1 of learner; the latest is 5, and max_staleness=2"}
        (tmp_path / "go").touch()
        job.until("actor/0: ready with version 5 of learner")
        (tmp_path / "stop").touch()
        assert job.finish() == 0 and job.alive() == []
        summary = json.loads((job.run_dir / "summary.json").read_text())
        restarts = {name: role["restarts"] for name, role in summary["roles"].items()}
        assert restarts == {"learner": 0, "actor": 1}
