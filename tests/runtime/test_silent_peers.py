"""R8 on real processes: peers of a lost node fail with its workers, before the loss is known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowdist.control.protocol.events import NodeSilent, NodeSuspected, ReplicaExited
from flowdist.record.journal import Record
from tests.runtime.harness import Job

pytestmark = pytest.mark.real

CONNECTED = """
import os, sys, time
print("generation", os.environ["FLOWDIST_GENERATION"], "of", os.environ["WORLD_SIZE"], flush=True)
if os.environ["WORLD_SIZE"] == "1":
    sys.exit(0)
if os.environ["RANK"] == "0":
    open("pipe").read()
    os._exit(1)  # the peer has died
with open("pipe", "w"):
    open("never").read()
"""
TOPOLOGY = """
from flowdist import Node, Topology
t = Topology("peers", nodes=2 * [Node(cpu=1)])
t.role("trainer", ["python", "trainer.py"], replicas="1:2", cpu=1, cooldown="10m")  # no policy: a failure fails the job
"""


def write(folder: Path) -> None:
    for name in ("pipe", "never"):
        os.mkfifo(folder / name)
    (folder / "trainer.py").write_text(CONNECTED)
    (folder / "topology.py").write_text(TOPOLOGY)


@pytest.mark.slow
def test_r8_peers_that_fail_with_a_node_that_falls_silent_do_not_fail_the_job(tmp_path: Path) -> None:
    """The agent of a silent node kills its workers 2 s before the controller takes the node for lost."""
    write(tmp_path)
    with Job(tmp_path, "--fail", "node1@generation=trainer,1+1s:lost/60s") as job:
        assert job.finish() == 0 and job.alive() == [], job.text
        told = [line.event for line in job.journal()[1] if isinstance(line, Record)]
    kinds = (NodeSuspected, ReplicaExited, NodeSilent)
    order = [type(event) for event in told if isinstance(event, kinds) and getattr(event, "node", "node1") == "node1"]
    assert order == [*kinds, ReplicaExited], "overdue, then its peer fails, then it is lost; at last the other finishes"
    assert "incident 1 was caused by the loss of node1: not counted" in job.text


def test_r8_a_peer_that_fails_before_the_death_of_a_node_is_known_fails_no_job(tmp_path: Path) -> None:
    """The peer's connection ends with the killed worker, before the guardian of that node has proven its death."""
    write(tmp_path)
    with Job(tmp_path, "--fail", "node1@generation=trainer,1+1s:kill") as job:
        assert job.finish() == 0 and job.alive() == [], job.text
    assert "generation 2 of 1" in job.text
