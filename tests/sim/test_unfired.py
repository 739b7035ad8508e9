"""A fault that hits nothing is reported, with the reason."""

from __future__ import annotations

import pytest

from flowdist.dsl import Node, Restart, Topology, Workload
from flowdist.sim.result import unfired_texts
from flowdist.testing import simulate
from flowdist.testing.kit import graph_of

NOT_SAVED = "it saves nothing that is simulated, unless simulate= names a model of its worker"


def job() -> Topology:
    t = Topology("job", nodes=[Node("node0", cpu=4), Node("node1", cpu=4)])
    ps = t.role("ps", "true", kind="service", restart=Restart("replica", max_restarts=1))
    load = Workload(steps=100, checkpoint_every="30s")
    t.role("trainer", "true", replicas=2, depends_on=[ps.started()], restart=Restart(max_restarts=2), workload=load)
    return t


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("node1@2h", "the job was over after 1m48s"),
        ("node1@every=2h", "the job was over after 1m48s"),
        ("node1@ready=trainer", "trainer has no ready_when=: it starts without a check of its readiness"),
        ("node1@generation=trainer,2", "trainer had 1 generation"),
        ("node1@start=trainer,2", "trainer had 1 generation"),
        ("node1@step=ps,5", "ps is a service: it counts no steps, and saves nothing that is simulated"),
        ("node1@checkpoint=ps,1", "ps is a service: it counts no steps, and saves nothing that is simulated"),
        ("node1@step=trainer,500", "trainer came to step 100"),
        ("node1@checkpoint=trainer,9", "trainer saved 3 checkpoints"),
        ("trainer/0@2s:torn-checkpoint", "there was no checkpoint of trainer/0 then"),
        ("ps@50s:lost-checkpoint", "there was no checkpoint of ps then"),
        ("node1@50s:broken-copy", "node1 held no copies then"),
        ("node1@50s:xid=79", "node1 had no GPU 0 then"),
        ("ps@50s:slow=2x", "ps is a service: what a slow service costs its callers is not simulated"),
        ("ps@50s:disk-full", f"ps is a service: {NOT_SAVED}"),
        ("ps@50s:slow-checkpoint=3x", f"ps is a service: {NOT_SAVED}"),
        ("trainer/1@5ms", "trainer/1 did not run then"),
    ],
)
def test_a_fault_that_never_fired_says_why(fault: str, why: str) -> None:
    assert unfired_texts(simulate(job(), fault)) == [f"fault {fault} never fired: {why}"]


def test_who_was_not_there_when_its_moment_came() -> None:
    assert unfired_texts(simulate(job(), "node1@20s", "node1@30s:pause/1s"))[-1].endswith("node1 was not there then")
    assert unfired_texts(simulate(job(), "controller@20s", "controller@20.001s"))[-1].endswith("no controller ran then")
    [text] = unfired_texts(simulate(job(), "trainer@1h", until="20s"))
    assert text.endswith("the clock stopped after 20s")


def test_a_role_that_never_started() -> None:
    t = Topology("job", nodes=1)
    first = t.role("first", "true", restart=None)
    t.role("second", "true", depends_on=[first.succeeded()])
    [text] = unfired_texts(simulate(graph_of(t), "node0@start=second", "first@20s"))
    assert text == "fault node0@start=second never fired: second never started"


def test_a_violation_that_ends_the_run_before_is_the_reason_and_no_other_is_told() -> None:
    faults = ("node1@1m", "node1@generation=trainer,2", "trainer/1@5ms")
    result = simulate(job(), *faults, always=[lambda job: job.worlds["trainer"].checkpoints == 0])
    assert result.violation is not None
    assert unfired_texts(result) == ["fault trainer/1@5ms never fired: trainer/1 did not run then"]
