"""Each fault of hosts and networks, on a real job of three hosts over TCP. No two generations run at the same time."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

import pytest

from flowdist.control.protocol.events import NodeGone, NodeJoined, NodeSilent, NodeSuspected, ReplicaExited
from flowdist.graph import SECOND
from flowdist.runtime.clock import boot_ns
from tests.lab.beating_job import BeatingJob
from tests.lab.beats import overlaps
from tests.lab.network import Lab
from tests.runtime.harness import children

pytestmark = [pytest.mark.real, pytest.mark.lab, pytest.mark.slow]

LEASE_NS = 4 * SECOND
NOTICED_NS = LEASE_NS + 3 * SECOND // 2

Break = Callable[[Lab], None]


@pytest.fixture
def job(lab: Lab) -> BeatingJob:
    return BeatingJob(lab)


def test_a_killed_worker_restarts_the_world_on_all_hosts(job: BeatingJob) -> None:
    job.begin_torchrun()
    job.kill_worker("h2")
    job.await_world(3)
    assert job.end() == {"h0": 0, "h1": 0, "h2": 0}
    assert len(job.events(NodeJoined)) == 3 and not job.events(NodeGone, NodeSilent)


def test_a_killed_command_of_a_host_is_proven_and_nothing_waits_for_its_lease(job: BeatingJob) -> None:
    job.begin_torchrun()
    (began, at) = job.start_ns(), boot_ns()
    job.jobs["h2"].process.kill()
    job.await_world(2)
    (gone,) = job.events(NodeGone)
    assert began + gone.t_ns - at < LEASE_NS - SECOND, "its guardian has proven its death"
    assert job.end("h0", "h1") == {"h0": 0, "h1": 0}
    assert job.lab.hosts["h2"].processes == []


def test_a_killed_agent_of_a_host_is_proven_and_the_host_comes_back_by_itself(job: BeatingJob) -> None:
    job.begin()
    guardian = job.jobs["h2"].named("flowdist.runtime.agent.guardian")[0]
    for pid in children(guardian):  # the agent, and the spawner of the workers, which the guardian may kill first
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.await_world(2)
    job.await_world(3)
    assert job.end() == {"h0": 0, "h1": 0, "h2": 0}
    assert len(job.events(NodeGone)) == 1 and not job.events(NodeSilent)


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(lambda lab: lab.power_off("h2"), id="power off"),
        pytest.param(lambda lab: lab.port_down("h2"), id="port down"),
        pytest.param(lambda lab: lab.link_down("h2"), id="link down"),
        pytest.param(lambda lab: lab.isolate("h2"), id="partition"),
        pytest.param(lambda lab: lab.cut("h2", "h0"), id="only from the host to the controller"),
        pytest.param(lambda lab: lab.cut("h0", "h2"), id="only from the controller to the host"),
    ],
)
def test_a_silent_host_is_lost_within_its_lease_and_a_second_and_a_half(job: BeatingJob, cut: Break) -> None:
    job.begin_torchrun()
    began, at = job.start_ns(), boot_ns()
    cut(job.lab)
    job.await_world(2)
    (silent,) = job.events(NodeSilent)
    assert silent.event.node == "h2"  # type: ignore[union-attr]
    assert began + silent.t_ns - at < NOTICED_NS
    assert job.end("h0", "h1") == {"h0": 0, "h1": 0}


@pytest.mark.parametrize("end", ["port", "link"])
def test_a_host_that_is_reached_again_is_part_of_the_job_again(job: BeatingJob, end: str) -> None:
    job.begin()
    job.lab.port_down("h2") if end == "port" else job.lab.link_down("h2")
    job.await_world(2)
    job.lab.port_up("h2") if end == "port" else job.lab.link_up("h2")
    job.await_world(3)
    assert job.end() == {"h0": 0, "h1": 0, "h2": 0}


def test_a_host_with_its_power_back_joins_by_the_same_command(job: BeatingJob) -> None:
    job.begin()
    job.lab.power_off("h1")
    job.await_world(2)
    job.lab.power_on("h1")
    job.join("h1")
    job.await_world(3)
    assert job.end() == {"h0": 0, "h1": 0, "h2": 0}


def test_a_silence_that_is_shorter_than_the_lease_changes_nothing(job: BeatingJob) -> None:
    """The frames of two seconds are lost, so that the connections have to send them again."""
    job.begin()
    job.lab.port_down("h2")
    job.first.recorded(NodeSuspected)
    job.lab.port_up("h2")
    job.kill_worker("h1")
    job.await_world(3)
    assert job.end() == {"h0": 0, "h1": 0, "h2": 0}
    assert not job.events(NodeSilent, NodeGone) and max(beat.generation for beat in job.beats()) == 2


def test_workers_of_two_hosts_that_do_not_reach_each_other_are_no_matter_of_the_controller(job: BeatingJob) -> None:
    job.begin()
    job.lab.partition("h1", "h2")
    job.kill_worker("h1")
    job.await_world(3)
    assert job.end() == {"h0": 0, "h1": 0, "h2": 0}
    assert not job.events(NodeSilent, NodeGone)


def test_a_slow_and_lossy_network_loses_no_host(job: BeatingJob) -> None:
    job.lab.delay("h2", 0.15)
    job.lab.lose("h1", 0.1)
    job.begin()
    job.kill_worker("h2")
    job.await_world(3)
    assert job.end() == {"h0": 0, "h1": 0, "h2": 0}
    assert not job.events(NodeSilent, NodeGone) and len(job.events(ReplicaExited)) >= 1


def test_hosts_without_a_controller_fence_and_end_after_the_outage(lab: Lab) -> None:
    job = BeatingJob(lab, outage="8s")
    job.begin()
    at = boot_ns()
    lab.power_off("h0")
    assert [job.jobs[host].finish() for host in ("h1", "h2")] == [1, 1]
    assert "no controller has answered" in job.jobs["h1"].text
    last = max(beat.t_ns for beat in job.beats())
    assert last - at < LEASE_NS + SECOND, "their workers have ended with the lease"
    assert lab.hosts["h1"].processes == [] and overlaps(job.beats()) == []


def test_the_host_of_the_controller_is_cut_off_and_comes_back(job: BeatingJob) -> None:
    """The controller continues with its own host alone; the others fence before, and join anew."""
    job.begin()
    job.lab.port_down("h0")
    job.await_world(1)
    job.lab.port_up("h0")
    job.await_world(3)
    assert job.end() == {"h0": 0, "h1": 0, "h2": 0}


def test_a_killed_command_on_the_host_of_the_controller_ends_the_others_with_its_reason(job: BeatingJob) -> None:
    job.begin_torchrun()
    at = boot_ns()
    job.first.process.kill()
    assert [job.jobs[host].finish() for host in ("h1", "h2")] == [1, 1]
    assert boot_ns() - at < LEASE_NS
    assert "the controller at" in job.jobs["h1"].text and job.lab.hosts["h0"].processes == []


def test_the_oracle_sees_a_worker_that_outlives_its_lease(job: BeatingJob) -> None:
    """Everything of flowdist on a host stands still and its cable is pulled: nobody there can fence, and it shows."""
    job.begin()
    worker = job.worker("h2")
    for pid in job.lab.hosts["h2"].processes:
        if pid != worker:
            os.kill(pid, signal.SIGSTOP)
    job.lab.port_down("h2")
    job.await_world(2)
    found = overlaps(job.beats())
    while not found:  # the next beat of the worker comes within 10 ms
        found = overlaps(job.beats())
    assert {late.host for _, late in found} == {"h2"} and {late.pid for _, late in found} == {worker}
