"""Versions in a simulation (R23): computed workers fetch what they need; models publish and acknowledge themselves."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from flowdist import Restart, Topology, Workload
from flowdist.control.protocol.events import ReplicaAcknowledged, ReplicaPublished
from flowdist.graph import RoleGraph
from flowdist.record.journal import Record
from flowdist.testing import graph_of
from tests.proofs.judge.restart_rules import complaints
from tests.sim.test_snapshots import texts
from tests.sim.test_workload import run


class Weights:
    """A service that holds the newest weights."""

    def __init__(self, ctx: Any) -> None:
        self.version = -1

    def put(self, version: int) -> None:
        self.version = version

    def get(self) -> int:
        return self.version


class Learner:
    """Puts its weights into the service after each tenth step, and publishes them."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    def restore(self) -> int:
        return 0

    def step(self, step: int) -> None:
        if step % 10 == 0:
            self.ctx.call(self.ctx.peers("weights", "rpc")[0], "put", step)
            self.ctx.publish_version(step)


class Actor:
    """Fetches the weights of the service before its first step, and says so."""

    late = 0

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    def restore(self) -> int:
        return 0

    def step(self, step: int) -> None:
        version = self.ctx.call(self.ctx.peers("weights", "rpc")[0], "get")
        if version >= 0:
            self.ctx.acknowledge_version(max(0, version - self.late))


class LateActor(Actor):
    """Takes weights that are older than it may."""

    late = 30


class Careless(Actor):
    """Never fetches any weights."""

    def step(self, step: int) -> None: ...


def rl(actor: Any = None, learner: Any = None, staleness: int = 10, timeout: str = "2m") -> RoleGraph:
    t = Topology("rl", nodes=2)
    again = Restart("replica", max_restarts=2)
    weights = t.role(
        "weights", "true", kind="service", ports=["rpc"], simulate=Weights, workload=Workload(startup="1s")
    )
    load = Workload(steps=200, startup="2s", checkpoint_every="20s", checkpoint_time="0s")
    gate = weights.started()
    lead = t.role("learner", "true", simulate=learner, workload=load, depends_on=gate, restart=Restart(max_restarts=2))
    t.role(
        "actor",
        "true",
        replicas=2,
        gang=False,
        primary=False,
        simulate=actor,
        depends_on=gate,
        versions=lead.version(max_staleness=staleness),
        restart=again,
        ready_timeout=timeout,
        workload=Workload(steps=100_000, startup="1s"),
    )
    return graph_of(t)


@pytest.mark.parametrize(("actor", "learner"), [(None, None), (Actor, Learner), (None, Learner)])
def test_actors_get_ready_and_come_back_with_a_fresh_version(actor: Any, learner: Any) -> None:
    result = run(rl(actor, learner), "actor/0@55s", "actor/1@1m35s")
    assert result.job.outcome == "succeeded" and complaints(result.lines) == []
    ready = [text for text in texts(result) if ": ready with version " in text]
    assert [text.partition(":")[0] for text in ready] == ["actor/0", "actor/1", "actor/0", "actor/1"]
    versions = [int(text.split("version ")[1].split()[0]) for text in ready]
    assert versions[0] == versions[1] == 0 and 30 <= versions[2] <= 60 and 70 <= versions[3] <= 100
    assert result.job.worlds["learner"].generation == 1


def test_an_actor_that_comes_back_with_old_weights_does_not_get_ready_and_fails() -> None:
    result = run(rl(LateActor, Learner, timeout="30s"), "actor/0@1m5s")
    told = texts(result)
    refused = "actor/0 is not ready: it has version 30 of learner; the latest is 60, and max_staleness=10"
    assert refused in told and sum("actor/0: ready" in text for text in told) == 1
    assert any("actor/0 failed on node" in text and "not get ready within 30s" in text for text in told)
    assert result.job.worlds["learner"].generation == 1


def test_an_actor_that_fetches_nothing_fails_with_the_reason() -> None:
    result = run(rl(Careless, Learner, timeout="30s"))
    text = "it did not get ready within 30s: it has acknowledged no version of learner"
    assert result.job.outcome == "failed" and text in result.job.ending_reason


def test_a_learner_that_restarts_begins_with_its_checkpoint_and_actors_run_on() -> None:
    result = run(rl(), "learner/0@1m10s", "actor/0@1m20s")
    assert result.job.outcome == "succeeded" and complaints(result.lines) == []
    assert result.job.worlds["learner"].generation == 2
    events = [line.event for line in result.lines if isinstance(line, Record)]
    versions = [event.version for event in events if isinstance(event, ReplicaPublished)]
    assert any(after <= before for before, after in itertools.pairwise(versions))
    assert [event.attempt for event in events if isinstance(event, ReplicaAcknowledged)].count(2) >= 1
    assert max(job.attempt for job in map(result.job.replicas.get, result.job.roles["actor"].replicas) if job) == 2
