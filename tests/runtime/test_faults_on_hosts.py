"""Faults of `flowdist run --listen --fail` on other hosts: carried out there, by what has joined. On real processes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from flowdist.control.protocol.events import NodeGone, NodeLeft, NodePreempted, NodeSilent, ReplicaExited
from flowdist.record.journal import FaultLine, Record
from flowdist.runtime.controller.host_registry import node_name
from tests.runtime.harness import Deaths, Job
from tests.runtime.hosts import Hosts

pytestmark = pytest.mark.real

SECOND = node_name(socket.gethostname(), {"trainer"}) + "-2"  # both hosts have the name of this machine
WAIT = """
import os, time
print("generation", os.environ["FLOWDIST_GENERATION"], "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"],
      flush=True)
while not os.path.exists("end"):
    time.sleep(0.02)
"""
TOPOLOGY = """
from flowdist import Restart, Topology

t = Topology("hosts", nodes="1:2")
t.role("trainer", "python train.py", replicas="1:2", apart=True, cooldown="0s", join_window="20s",
       restart=Restart("role", max_restarts=1))
"""


def two_hosts(hosts: Hosts, *faults: str) -> tuple[Job, Job]:
    """The second joins when the first has its node, and has the name SECOND."""
    (hosts.folder / "train.py").write_text(WAIT)
    (hosts.folder / "topology.py").write_text(TOPOLOGY)
    words = [word for fault in faults for word in ("--fail", fault)]
    first = hosts.start(1, "run", str(hosts.folder / "topology.py"), "--listen", hosts.endpoint, *words)
    first.until("joined")
    return first, hosts.start(2, "join", hosts.endpoint)


def events(job: Job) -> list[object]:
    return [line.event for line in job.journal()[1] if isinstance(line, Record)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "heard"),
    [
        ("/5s", NodeGone),
        (":leave/5s", NodeLeft),
        (":preempt=1s/5s", NodePreempted),
        (":lost/10s", NodeSilent),
        (":pause/10s", NodeSilent),
    ],
)
def test_a_node_of_another_host_is_hit_and_comes_back(tmp_path: Path, kind: str, heard: type) -> None:
    with Hosts(tmp_path) as hosts:
        first, second = two_hosts(hosts, f"{SECOND}@generation=trainer,1{kind}")
        first.until("rank 0 of 1")
        second.until("generation 3 rank 1 of 2")
        (tmp_path / "end").touch()
        assert hosts.all_end() == [0, 0], hosts.text
        assert "never fired" not in hosts.text
    assert any(isinstance(event, heard) and event.node == SECOND for event in events(first)), events(first)


@pytest.mark.slow
def test_a_node_that_does_not_come_back_leaves_its_command_to_see_the_end(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        first, second = two_hosts(hosts, f"{SECOND}@generation=trainer,1")
        first.until("rank 0 of 1")
        with Deaths(second.alive(but=(second.process.pid,))) as deaths:
            assert deaths.survivors() == []
        assert second.process.poll() is None
        (tmp_path / "end").touch()
        assert hosts.all_end() == [0, 0], hosts.text
    (gone,) = [event for event in events(first) if isinstance(event, NodeGone)]
    assert gone.cause == "killed by a fault"


@pytest.mark.slow
def test_a_worker_on_another_host_is_hit_there(tmp_path: Path) -> None:
    faults = ("trainer/1@generation=trainer,1:exit=7", "trainer/1@generation=trainer,2:pause/1s")
    with Hosts(tmp_path) as hosts:
        first, second = two_hosts(hosts, *faults)
        second.until("a fault hits trainer/1/attempt_2: pause")
        (tmp_path / "end").touch()
        assert hosts.all_end() == [0, 0], hosts.text
    (exited,) = [event for event in events(first) if isinstance(event, ReplicaExited) and event.kind is not None]
    assert (str(exited.replica), exited.exit_code) == ("trainer/1", 7)
    noted = [(line.spec, line.target) for line in first.journal()[1] if isinstance(line, FaultLine)]
    assert noted == [(faults[0], "trainer/1/attempt_1"), (faults[1], "trainer/1/attempt_2")]


def test_orders_reach_another_host_too(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        first, second = two_hosts(hosts, f"{SECOND}@generation=trainer,1:drain")
        first.until("rank 0 of 1")
        (tmp_path / "end").touch()
        assert hosts.all_end() == [0, 0], hosts.text
        assert "a fault hits" not in second.text, "the operator's orders are carried out by control"


def test_a_slip_of_the_pen_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "topology.py").write_text(TOPOLOGY)
    (tmp_path / "train.py").write_text(WAIT)
    with Hosts(tmp_path) as hosts:
        words = (str(tmp_path / "topology.py"), "--listen", hosts.endpoint, "--fail", "trianer@3s")
        job = hosts.start(1, "run", *words)
        assert job.finish() == 2 and "there is no 'trianer'" in job.text and "did you mean 'trainer'" in job.text
