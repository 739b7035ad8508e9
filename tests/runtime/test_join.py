"""`flowdist run --listen` and `flowdist join`: a topology over several hosts, on real processes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from pathlib import Path

import pytest

from flowdist.control.protocol.events import NodeGone, NodeJoined, NodeSilent
from flowdist.record.journal import Record
from tests.runtime.harness import Job
from tests.runtime.hosts import Hosts
from tests.runtime.network import Network

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
pytestmark = pytest.mark.real

SUM = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
print("generation", os.environ["FLOWDIST_GENERATION"], "sum", ones.item(), "at", os.environ["MASTER_ADDR"],
      "through", os.environ["GLOO_SOCKET_IFNAME"], flush=True)
while not os.path.exists("end"):
    time.sleep(0.02)
os._exit(0)
"""
WAIT = """
import os, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists("end"):
    time.sleep(0.02)
"""
TOPOLOGY = """
from flowdist import Topology

t = Topology("hosts", nodes="1:2", controller_outage="{outage}", lease="{lease}")
t.role("trainer", "python train.py", replicas="1:2", apart=True, cooldown="0s", join_window="20s")
"""
SERVICE = """
from flowdist import On, Topology

t = Topology("service", nodes=2)
echo = t.role("echo", ["python", "echo.py", "${self.port:rpc}"], kind="service", ports=["rpc"], ready_when="tcp:rpc")
t.role("asker", ["python", "ask.py", echo.addresses("rpc")], depends_on=[echo.ready()], apart=[echo])
"""
ECHO = """
import os, socket, sys
listening = socket.create_server(("", int(sys.argv[1])))
while True:
    connection, _ = listening.accept()
    with connection:
        connection.sendall(connection.recv(100).upper())
"""
ASK = """
import socket, sys
host, port = sys.argv[1].split(":")
with socket.create_connection((host, int(port))) as connection:
    connection.sendall(b"hello")
    print(host, "says", connection.recv(100).decode())
"""


def topology(folder: Path, script: str, *, outage: str = "10m", lease: str = "4s") -> str:
    (folder / "train.py").write_text(script)
    (folder / "topology.py").write_text(TOPOLOGY.format(outage=outage, lease=lease))
    return str(folder / "topology.py")


def events(job: Job) -> list[object]:
    return [line.event for line in job.journal()[1] if isinstance(line, Record)]


def test_the_job_grows_with_a_host_that_joins_and_shrinks_with_one_that_leaves(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        path = topology(tmp_path, WAIT)
        first = hosts.start(1, "run", path, "--set", "trainer.join_window=0s", "--listen", hosts.endpoint)
        first.until("[trainer/0] rank 0 of 1")
        second = hosts.start(2, "join", hosts.endpoint, "--local-addr", "127.0.0.2")
        second.until("[trainer/1] rank 1 of 2")
        first.until("[trainer/0] rank 0 of 2")
        second.process.send_signal(signal.SIGINT)
        assert second.finish() == 130 and second.alive() == []
        first.until("[trainer/0] rank 0 of 1")
        third = hosts.start(3, "join", hosts.endpoint)
        third.until("[trainer/1] rank 1 of 2")
        (tmp_path / "end").touch()
        assert (first.finish(), third.finish()) == (0, 0), hosts.text
        assert first.text.count("trainer/1: starts on") == 2 and "starts on" not in second.text + third.text
        assert "the job has succeeded" in third.text and "restarts" in first.text and "restarts" not in third.text
    joined = [event.node for event in events(first) if isinstance(event, NodeJoined)]
    assert len(set(joined)) == 2, "a name that has left is given again"
    for job, name in ((first, joined[0]), (second, joined[1]), (third, joined[1])):
        labels = {line.partition(" | ")[0].split()[-1] for line in job.output if line.startswith("flowdist ")}
        assert labels == {name}, job.text
    starts = [
        next(float(line.split()[1][:-1]) for line in job.output if " | " in line and " joined" in line)
        for job in (first, second, third)
    ]
    assert starts == sorted(starts), "all have the clock of the job, not one that begins with their own process"


def test_a_host_whose_folder_is_removed_stays_until_the_job_ends(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        path = topology(tmp_path, WAIT)
        first = hosts.start(1, "run", path, "--listen", hosts.endpoint)
        second = hosts.start(2, "join", hosts.endpoint)
        second.until("rank 1 of 2")
        shutil.rmtree(second.folder)
        (tmp_path / "end").touch()
        assert hosts.all_end() == [0, 0], hosts.text
        assert "the summary cannot be written into" in second.text and "the job has succeeded" in second.text
        assert "summary cannot" not in first.text and "Traceback" not in hosts.text


def test_roles_find_each_other_by_the_addresses_of_their_hosts(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    (tmp_path / "ask.py").write_text(ASK)
    (tmp_path / "service.py").write_text(SERVICE)
    with Hosts(tmp_path) as hosts:
        hosts.start(1, "run", str(tmp_path / "service.py"), "--listen", hosts.endpoint)
        hosts.start(2, "join", hosts.endpoint, "--local-addr", "127.0.0.2")
        assert hosts.all_end() == [0, 0], hosts.text
        assert "[asker/0] 127.0.0.1 says HELLO" in hosts.text


def test_a_host_that_comes_after_the_end_says_that_the_run_is_over(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        first = hosts.start(1, "run", topology(tmp_path, "print('done')"), "--listen", hosts.endpoint)
        assert first.finish() == 0, first.text
        late = hosts.start(1, "join", hosts.endpoint, "--timeout", "0.5")
        assert late.finish() != 0, late.text
        over = f"run {first.run_dir.name}, which listened at {hosts.endpoint}, is over: succeeded"
        assert late.text.count(over) == 2, late.text
        elsewhere = hosts.start(2, "join", hosts.endpoint, "--timeout", "0.5")
        assert elsewhere.finish() != 0 and over not in elsewhere.text, "it has no folder of runs"


@pytest.mark.slow
def test_a_host_without_the_working_folder_of_a_role_says_so(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        there = tmp_path / "there"
        there.mkdir()
        first = hosts.start(1, "run", topology(there, WAIT), "--listen", hosts.endpoint)
        first.until("joined")
        second = hosts.start(2, "join", hosts.endpoint, "--workdir", str(tmp_path / "nowhere"))
        assert second.finish() == 2 and "and this host has no such folder" in second.text
        assert hosts.start(3, "join", "192.0.2.1:1").finish() == 2 and "without FLOWDIST_TOKEN this host" in hosts.text
        assert hosts.start(4, "run", str(there / "topology.py"), "--listen", "192.0.2.1:1").finish() == 2
        assert "could join" in hosts.text


@pytest.mark.slow
def test_joined_hosts_end_when_the_controllers_host_is_gone_for_too_long(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        path = topology(tmp_path, WAIT, outage="3s")
        first = hosts.start(1, "run", path, "--listen", hosts.endpoint)
        second = hosts.start(2, "join", hosts.endpoint)
        second.until("[trainer/1] rank 1 of 2")
        for pid in [*first.named("flowdist.runtime.controller.controller_main"), first.process.pid]:
            os.kill(pid, signal.SIGSTOP)  # the controller cannot say farewell
        first.kill()
        folder = next((second.folder / "runs").iterdir())
        again = hosts.start(2, "run", "--resume", folder.name)
        assert again.finish() == 2 and f"its journal is on the host of {hosts.endpoint}" in again.text
        logs = hosts.start(2, "logs", "--run", folder.name)
        assert logs.finish() == 0 and "[trainer/1] rank 1 of 2" in logs.text
        again = hosts.start(1, "run", "--resume", "latest")
        assert again.finish() == 2 and "spans several hosts" in again.text
        assert f"write flowdist run --listen {hosts.endpoint} --resume {first.run_dir.name}" in again.text
        assert second.finish() == 1 and second.alive() == [], second.text
        text = f"no controller has answered at {hosts.endpoint} for 3s (connection refused)"
        assert f"{text}; everything on this host was stopped" in second.text


@pytest.mark.slow
@needs_torch
def test_a_host_that_was_cut_off_is_lost_by_its_lease_and_joins_again(tmp_path: Path) -> None:
    with Network() as network, Hosts(tmp_path) as hosts:
        endpoint, token = "10.77.0.1:29400", {"FLOWDIST_TOKEN": "hush"}
        path = topology(tmp_path, SUM)
        first = hosts.start(1, "run", path, "--listen", endpoint, env=token, before=network.on(1))
        second = hosts.start(2, "join", endpoint, env=token, before=network.on(2))
        first.until("[trainer/0] generation 1 sum 2.0 at 10.77.0.1 through veth1")
        second.until("[trainer/1] generation 1 sum 2.0 at 10.77.0.1 through veth2")
        (folder,) = second.folder.glob("runs/*/trainer/1/attempt_1/0")
        worker = int((folder / "pid").read_text())
        assert worker in second.alive()
        network.cut()
        first.until("[trainer/0] generation 2 sum 1.0")
        assert worker not in second.alive(), "it was fenced before the others went on"
        lost = [event for event in events(first) if isinstance(event, NodeSilent | NodeGone)]
        assert [type(event) for event in lost] == [NodeSilent]
        network.mend()
        first.until("[trainer/0] generation 3 sum 2.0")
        second.until("[trainer/1] generation 3 sum 2.0")
        (tmp_path / "end").touch()
        assert hosts.all_end() == [0, 0], hosts.text


@pytest.mark.slow
def test_a_host_that_is_cut_off_for_good_ends_by_itself(tmp_path: Path) -> None:
    with Network() as network, Hosts(tmp_path) as hosts:
        endpoint, token = "10.77.0.1:29400", {"FLOWDIST_TOKEN": "hush"}
        path = topology(tmp_path, WAIT, outage="6s")
        first = hosts.start(1, "run", path, "--listen", endpoint, env=token, before=network.on(1))
        second = hosts.start(2, "join", endpoint, env=token, before=network.on(2))
        second.until("rank 1 of 2")
        network.cut()
        assert second.finish() == 1 and second.alive() == [], second.text
        assert f"no controller has answered at {endpoint} for 6s" in second.text
        first.until("rank 0 of 1")
        (tmp_path / "end").touch()
        assert first.finish() == 0, first.text
