"""R23: a replica that needs versions of another role is ready only with one that is published and fresh enough."""

from __future__ import annotations

import pytest

from flowdist.control.membership.waiting import held_up_by
from flowdist.control.protocol import events as ev
from flowdist.graph import MINUTE, Gate, RoleGraph, VersionEdge
from tests.control.harness import TCP, Talk, graph, r, restart, role


def rl(staleness: int = 2, **fields: object) -> RoleGraph:
    """A learner of one replica, a critic that publishes too, two actors, and an evaluator that waits for the actors."""
    edge = VersionEdge("learner", staleness)
    return graph(
        role("learner", restart=restart()),
        role("critic", restart=restart(), primary=False),
        role(
            "actor", min_replicas=2, max_replicas=2, primary=False, restart=restart("replica"), versions=edge, **fields
        ),
        role("evaluator", primary=False, gates=(Gate("actor", "ready"),)),
        role("watcher", primary=False, gang=False, restart=restart("replica"), versions=VersionEdge("critic")),
        nodes=2,
    )


def started(staleness: int = 2, **fields: object) -> Talk:
    talk = Talk(rl(staleness, **fields))
    talk.join("node0", "node1")
    return talk


def publish(talk: Talk, version: int, name: str = "learner/0", attempt: int | None = None) -> None:
    talk.tell(ev.ReplicaPublished(r(name), attempt or talk.replica(name).attempt, version))


def acknowledge(talk: Talk, name: str, version: int, attempt: int | None = None) -> None:
    talk.tell(ev.ReplicaAcknowledged(r(name), attempt or talk.replica(name).attempt, version))


def phases(talk: Talk) -> str:
    return " ".join(talk.replica(name).phase for name in ("actor/0", "actor/1"))


def test_r23_a_replica_is_ready_with_a_version_that_is_fresh_enough_and_opens_its_gate() -> None:
    talk = started()
    publish(talk, 5)
    assert phases(talk) == "running running" and "evaluator/0" not in talk.up()
    acknowledge(talk, "actor/0", 3)
    assert phases(talk) == "ready running"
    acknowledge(talk, "actor/1", 5)
    assert phases(talk) == "ready ready" and "evaluator/0" in talk.up()
    assert "actor/0: ready with version 3 of learner" in talk.texts()


def test_r23_an_old_version_is_refused_once_and_a_newer_one_is_taken() -> None:
    talk = started()
    publish(talk, 5)
    acknowledge(talk, "actor/0", 1)
    acknowledge(talk, "actor/0", 2)
    assert phases(talk) == "running running"
    refused = [text for text in talk.texts() if "not ready" in text]
    assert refused == ["actor/0 is not ready: it has version 1 of learner; the latest is 5, and max_staleness=2"]
    acknowledge(talk, "actor/0", 4)
    assert phases(talk) == "ready running"


def test_r23_a_replica_that_is_ready_stays_so_when_newer_versions_are_published() -> None:
    talk = started(0)
    publish(talk, 1)
    acknowledge(talk, "actor/0", 1)
    publish(talk, 9)
    assert phases(talk) == "ready running"


def test_r23_each_attempt_needs_a_version_of_its_own() -> None:
    talk = started()
    publish(talk, 5)
    acknowledge(talk, "actor/0", 5)
    talk.fail("actor/0")
    assert phases(talk) == "running running" and talk.replica("actor/0").attempt == 2
    acknowledge(talk, "actor/0", 5, attempt=1)
    assert phases(talk) == "running running"
    acknowledge(talk, "actor/0", 4)
    assert phases(talk) == "ready running" and talk.replica("learner/0").attempt == 1


def test_r23_what_another_replica_or_another_role_has_counts_for_nothing() -> None:
    talk = started()
    acknowledge(talk, "actor/0", 3)
    publish(talk, 3, "critic/0")
    assert phases(talk) == "running running"
    publish(talk, 3)
    assert phases(talk) == "ready running"
    acknowledge(talk, "watcher/0", 3)
    assert phases(talk) == "ready running" and talk.replica("watcher/0").phase == "ready"


def test_r23_a_version_that_was_never_published_counts_from_its_publication() -> None:
    talk = started()
    publish(talk, 5)
    acknowledge(talk, "actor/0", 6)  # its report has overtaken that of the learner
    assert phases(talk) == "running running" and not any("not ready" in text for text in talk.texts())
    publish(talk, 6)
    assert phases(talk) == "ready running"


def test_r23_a_replica_may_acknowledge_before_its_start_is_reported() -> None:
    talk = Talk(rl(), auto=False)
    talk.join("node0", "node1")
    for world in list(talk.job.worlds.values()):
        if world.phase == "opening":
            talk.tell(ev.StoreOpened(world.name, world.generation, 1))
    talk.tell(ev.ReplicaStarted(r("learner/0"), 1))
    publish(talk, 1)
    acknowledge(talk, "actor/0", 1)
    assert talk.replica("actor/0").phase == "starting"
    talk.tell(ev.ReplicaStarted(r("actor/0"), 1))
    assert talk.replica("actor/0").phase == "ready"


def test_r23_a_check_and_a_version_are_both_needed_in_any_order() -> None:
    talk = Talk(rl(ready=TCP, ports=("rpc",)), auto=False)
    talk.join("node0", "node1")
    for world in list(talk.job.worlds.values()):
        if world.phase == "opening":
            talk.tell(ev.StoreOpened(world.name, world.generation, 1))
    for name in ("learner/0", "actor/0", "actor/1"):
        talk.tell(ev.ReplicaStarted(r(name), 1))
    publish(talk, 1)
    talk.tell(ev.ReplicaReady(r("actor/0"), 1))
    acknowledge(talk, "actor/1", 1)
    assert phases(talk) == "running running"
    acknowledge(talk, "actor/0", 1)
    talk.tell(ev.ReplicaReady(r("actor/1"), 1))
    assert phases(talk) == "ready ready"


def test_r23_a_learner_that_resumes_from_an_earlier_step_begins_a_new_count() -> None:
    talk = started(0)
    publish(talk, 10)
    talk.fail("learner/0")
    acknowledge(talk, "actor/0", 9)
    assert phases(talk) == "running running"  # until the learner publishes again, 10 is the latest
    publish(talk, 9)
    assert phases(talk) == "ready running"
    publish(talk, 8)  # within a generation numbers grow
    acknowledge(talk, "actor/1", 8)
    assert phases(talk) == "ready running" and talk.job.roles["learner"].version == 9
    acknowledge(talk, "actor/1", 10)  # a version of the time before, which was published
    assert phases(talk) == "ready ready"


def test_r23_the_time_to_get_ready_begins_with_the_first_version() -> None:
    talk = started(ready_timeout_ns=MINUTE)
    talk.wait(600)
    assert phases(talk) == "running running"
    waits = "learner to publish a first version, without which actor does not get ready"
    assert waits in held_up_by(talk.job)
    publish(talk, 7)
    reason = "actor/0 to get ready: it has acknowledged no version of learner; the latest is 7"
    assert reason in held_up_by(talk.job)
    acknowledge(talk, "actor/1", 7)
    talk.wait(61)
    failed = "actor/0 failed on node0: it did not get ready within 1m: it has acknowledged no version of learner"
    assert any(failed in text for text in talk.texts())
    assert talk.replica("actor/0").attempt == 2 and talk.replica("actor/1").attempt == 1


def test_r23_an_incident_is_over_when_its_replicas_have_a_version_again() -> None:
    talk = started()
    publish(talk, 5)
    for name in ("actor/0", "actor/1"):
        acknowledge(talk, name, 5)
    talk.fail("actor/0")
    assert talk.job.open
    acknowledge(talk, "actor/0", 5)
    assert not talk.job.open and talk.replica("learner/0").attempt == 1


@pytest.mark.parametrize("name", ["learner/0", "evaluator/0"])
def test_r23_a_role_without_an_edge_acknowledges_nothing(name: str) -> None:
    talk = started()
    publish(talk, 1)
    for actor in ("actor/0", "actor/1"):
        acknowledge(talk, actor, 1)
    acknowledge(talk, name, 1)
    assert talk.replica(name).phase == "running" and talk.replica(name).version == -1
