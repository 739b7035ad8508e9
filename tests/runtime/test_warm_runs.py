"""Real jobs whose workers are forked: imports happen once, and a role that cannot be forked reports why."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from pathlib import Path

import pytest

from flowdist.control.protocol.events import ReplicaStartsCold
from flowdist.record.journal import Record
from tests.runtime.harness import Job
from tests.runtime.test_run import replayed

pytestmark = pytest.mark.real
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

TOPOLOGY = """
from flowdist import Restart, Topology
t = Topology("warm", nodes=1)
again = Restart("role", max_restarts=2)
t.role("main", script="work.py", replicas="1x2", preload={preload}, warm={warm}, restart=again)
"""
HEAVY = "import time\nat = time.perf_counter_ns()\n"
# Rank 1 fails when rank 0 is there as well.
DIES_ONCE = """
import heavy, os, sys, time
print("imported", heavy.at, flush=True)
if os.environ["RANK"] == "0":
    open("there", "w").close()
elif os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists("there"):
        time.sleep(0.01)
    sys.exit(1)
"""


def job(folder: Path, heavy: str = HEAVY, work: str = DIES_ONCE, preload: str = "['heavy']", warm: str = "None") -> Job:
    (folder / "heavy.py").write_text(heavy)
    (folder / "work.py").write_text(work)
    (folder / "topology.py").write_text(TOPOLOGY.format(preload=preload, warm=warm))
    return Job(folder)


SEVERAL = """
from flowdist import Node, Topology
t = Topology("several", nodes=3 * [Node(cpu=1)])
t.role("first", script="work.py", cpu=1)
t.role("second", script="work.py", args=["until", "nodes", "are", "warm"], cpu=1)
"""
UNTIL_WARM = """
import os, sys, time
from pathlib import Path
rank = os.environ["RANK"]
logs = [Path(f"runs/latest/node{number}.log") for number in (0, 1, 2)]
while sys.argv[1:] and [log.read_text().count("has come to its split") for log in logs] != [2, 1, 2]:
    time.sleep(0.05)
"""


def test_a_node_with_nothing_to_do_runs_the_scripts_of_all_roles_up_to_their_split(tmp_path: Path) -> None:
    """The second role waits for the node of the first one, which has ended, and for the one that had nothing to do."""
    (tmp_path / "work.py").write_text(UNTIL_WARM)
    (tmp_path / "topology.py").write_text(SEVERAL)
    with Job(tmp_path) as run:
        assert run.finish() == 0, run.text
        assert run.alive() == []


def test_a_restart_imports_nothing_again(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        assert run.finish() == 0, run.text
        imported = re.findall(r"imported (\d+)", run.text)
        assert len(imported) == 4 and len(set(imported)) == 1
        assert "starts cold" not in run.text and run.alive() == []


def test_without_warm_every_worker_imports_for_itself(tmp_path: Path) -> None:
    with job(tmp_path, warm="False", preload="()") as run:
        assert run.finish() == 0, run.text
        assert len(set(re.findall(r"imported (\d+)", run.text))) == 4


@pytest.mark.slow
@needs_torch
def test_a_script_that_imports_torch_has_what_that_imports_late(tmp_path: Path) -> None:
    late = "heavy.at, 'torch._dynamo' in sys.modules"
    work = DIES_ONCE.replace("import heavy, ", "import torch, heavy, ").replace("print(", "os.environ['RANK']\nprint(")
    work = work.replace("heavy.at", late)
    with job(tmp_path, work=work, preload="()") as run:
        assert run.finish() == 0, run.text
        assert len(re.findall(r"imported \d+ True", run.text)) == 4


def test_a_role_that_cannot_be_forked_is_reported_once_and_runs(tmp_path: Path) -> None:
    with job(tmp_path, heavy=HEAVY + "import mmap\nkept = mmap.mmap(-1, 8)\n") as run:
        assert run.finish() == 0, run.text
        told = [line for line in run.output if "starts cold" in line]
        assert len(told) == 1 and "main starts cold on node0: it has made memory that processes share" in told[0]
        _, lines = run.journal()
        events = [line.event for line in lines if isinstance(line, Record)]
        assert len([event for event in events if isinstance(event, ReplicaStartsCold)]) == 1
        replayed(run)
        assert len(set(re.findall(r"imported (\d+)", run.text))) == 4


def test_ctrl_c_does_not_wait_for_imports(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    with job(tmp_path, heavy="import os\nprint(os.getpid())\nopen('never').read()") as run:
        run.until("main/0: starts on node0")
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 130
        assert run.alive() == []


GROUP = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("up", os.environ["MASTER_PORT"], flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    import time
    time.sleep(3600)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("warm", ["None", "False"])
def test_stores_are_forked_from_the_prefix_where_there_is_one(tmp_path: Path, warm: str) -> None:
    with job(tmp_path, work=GROUP, preload="()", warm=warm) as run:
        run.until("up", times=2)
        assert len(run.named("flowdist.runtime.stores.store_host")) == (
            0 if warm == "None" else 2
        )  # a template and its fork
        pid = (run.run_dir / "main/0/attempt_1/0/pid").read_text()
        os.kill(int(pid), signal.SIGKILL)
        assert run.finish() == 0, run.text
        assert len(set(re.findall(r"\] up (\d+)", run.text))) == 2 and run.alive() == []
        left = [path.name for path in run.run_dir.rglob("*") if path.is_socket()]
        assert left == []


@needs_torch
def test_workers_without_torch_cost_no_store_host_until_one_connects(tmp_path: Path) -> None:
    work = """
import os, socket, sys
print("up", os.environ["RANK"], flush=True)
sys.stdin.read()
while not os.path.exists("go"):
    pass
if os.environ["RANK"] == "0":
    socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).recv(1)
"""
    with job(tmp_path, work=work, preload="()") as run:
        run.until("up", times=2)
        assert run.named("flowdist.runtime.stores.store_host") == []
        (tmp_path / "go").touch()
        while not run.named("flowdist.runtime.stores.store_host"):
            assert run.alive()


@pytest.mark.slow
@needs_torch
def test_a_forked_store_that_dies_is_an_incident_of_its_world(tmp_path: Path) -> None:
    with job(tmp_path, work=GROUP, preload="()") as run:
        run.until("up", times=2)
        os.kill(int((run.run_dir / "stores/main-1/pid").read_text()), signal.SIGKILL)
        assert run.finish() == 0, run.text
        assert "the store of main (generation 1) died: signal KILL" in run.text
