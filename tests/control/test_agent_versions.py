"""An agent reports what its workers publish and acknowledge (R23): the first at once, the newest in a heartbeat."""

from __future__ import annotations

from flowdist.control.agent.agent import Agent
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.graph import SECOND, VersionEdge
from tests.control.agent_harness import A, T, Talk, start
from tests.control.harness import graph, r, role


class RL(Talk):
    """The agent of a node with `learner/0` and with `trainer/0`, whose two workers need versions of the learner."""

    def __init__(self) -> None:
        roles = role("learner"), role("trainer", procs=2, versions=VersionEdge("learner", 1)), role("other")
        self.agent = Agent(A, graph(*roles))
        self.now, self.sent = 0, []
        self.tell(io.Connected())
        self.tell(msg.Acked(1, self.agent.incarnation, 0))
        for name in ("learner/0", "trainer/0", "other/0"):
            self.order(start(name=name))
            self.tell(io.WorkersSpawned(r(name), 1))

    def publish(self, version: int, name: str = "learner/0") -> list[object]:
        return self.tell(io.WorkerPublished(r(name), 1, 0, version))

    def acknowledge(self, rank: int, version: int) -> list[object]:
        return self.tell(io.WorkerAcknowledged(T, 1, rank, version))


def published(version: int) -> ev.ReplicaPublished:
    return ev.ReplicaPublished(r("learner/0"), 1, version)


def acknowledged(version: int) -> ev.ReplicaAcknowledged:
    return ev.ReplicaAcknowledged(T, 1, version)


def test_the_first_version_is_reported_at_once_and_of_later_ones_the_newest_after_a_heartbeat() -> None:
    talk = RL()
    assert talk.publish(1) == [published(1)]
    assert talk.publish(2) == talk.publish(3) == []
    assert talk.at(0.5) == [published(3)]
    assert talk.at(5, ack=True) == []
    assert talk.publish(4) == [published(4)]


def test_a_published_version_that_is_not_higher_is_ignored() -> None:
    talk = RL()
    talk.publish(5)
    talk.at(1, ack=True)
    assert talk.publish(5) == talk.publish(4) == talk.publish(-1) == talk.publish(1 << 63) == []


def test_a_replica_has_the_lowest_version_of_its_workers_once_all_have_one() -> None:
    talk = RL()
    assert talk.acknowledge(0, 7) == []
    assert talk.acknowledge(1, 6) == [acknowledged(6)]
    talk.at(1, ack=True)
    assert talk.acknowledge(0, 8) == []
    assert talk.acknowledge(1, 8) == [acknowledged(8)]
    assert talk.acknowledge(2, 9) == []  # there is no such worker


def test_what_no_role_asks_for_is_not_reported() -> None:
    talk = RL()
    assert talk.publish(1, "other/0") == []
    assert talk.tell(io.WorkerAcknowledged(r("learner/0"), 1, 0, 1)) == []
    assert talk.tell(io.WorkerPublished(r("learner/0"), 2, 0, 1)) == []  # an attempt that does not run


def test_an_agent_that_joins_again_repeats_the_versions() -> None:
    talk = RL()
    talk.publish(3)
    talk.acknowledge(0, 3)
    talk.acknowledge(1, 3)
    talk.tell(io.Disconnected())
    talk.now += SECOND
    talk.publish(4)
    again = talk.tell(io.Connected())
    assert published(4) in again and acknowledged(3) in again


def test_a_version_that_waits_is_reported_before_the_end_of_its_attempt() -> None:
    talk = RL()
    talk.publish(1)
    talk.publish(2)
    out = talk.tell(io.WorkerExited(r("learner/0"), 1, 0))
    assert out.index(published(2)) < out.index(ev.ReplicaExited(r("learner/0"), 1))
