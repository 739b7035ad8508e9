"""The text of a status: roles as rows, by name only what is unusual, no more lines than there is room for.

python -m tests.report.test_status        writes the golden picture anew; read the difference before you commit it
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flowdist.control.controller import Controller
from flowdist.control.fleet.values import FleetState, Member
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import OpenStore, StartReplica, StopReplica
from flowdist.graph import SECOND, Gate, NodeSpec, RoleGraph, VersionEdge
from flowdist.record.journal import record
from flowdist.record.status import RecentDecisions, Status, members_of, status_of
from flowdist.report.live.status import TIGHTER, fitted, one_line, plain, status_text
from tests.control.harness import TCP, graph, r, restart, role

GOLDEN = Path(__file__).parents[1] / "golden/status_of_200_replicas.txt"


class Feed:
    """Controller whose agents answer at once, except for replicas that are `held`: they never answer."""

    def __init__(self, job: RoleGraph) -> None:
        self.controller, self.lately = (
            Controller(job, tuple(node.name for node in job.cluster.nodes)),
            RecentDecisions(),
        )
        self.now = self.n = 0
        self.held: set[str] = set()
        for node in job.cluster.nodes:
            self.tell(ev.NodeJoined(node.name, node))

    def tell(self, event: ev.Event, at_s: float = 0.0) -> None:
        self.now = max(self.now, round(at_s * SECOND))
        queue = [event]
        while queue:
            event, self.n = queue.pop(0), self.n + 1
            effects = self.controller.handle(event, self.now)
            self.lately.hear(record(self.n, self.now, event, effects))
            for effect in effects:
                match effect:
                    case OpenStore():
                        queue.append(ev.StoreOpened(effect.world, effect.generation, 29500))
                    case StartReplica() if str(effect.replica) not in self.held:
                        queue.append(ev.ReplicaStarted(effect.replica, effect.attempt))
                        if effect.replica.role == "ps":
                            queue.append(ev.ReplicaReady(effect.replica, effect.attempt))
                    case StopReplica() if str(effect.replica) not in self.held:
                        queue.append(ev.ReplicaStopped(effect.replica, effect.attempt))

    def fail(self, name: str, at_s: float) -> None:
        attempt = self.controller.state.replicas[r(name)].attempt
        self.tell(ev.ReplicaExited(r(name), attempt, "exit", 1, detail="ValueError: x"), at_s)

    def step(self, name: str, step: int, at_s: float) -> None:
        attempt = self.controller.state.replicas[r(name)].attempt
        self.tell(ev.ReplicaProgressed(r(name), attempt, step), at_s)

    def status(self, at_s: float | None = None) -> Status:
        now = None if at_s is None else round(at_s * SECOND)
        return status_of(self.controller.state, self.lately, "big-20261121-1", now)


def big_job() -> Feed:
    """Return a job with 200 trainers, three servers and twelve actors on 28 nodes, after several failures."""
    ps = role(
        "ps", kind="service", min_replicas=3, max_replicas=3, ports=("rpc",), ready=TCP, restart=restart("replica")
    )
    trainer = role(
        "trainer",
        min_replicas=150,
        max_replicas=200,
        gates=(Gate("ps", "ready"),),
        restart=restart("role", 5),
        hang_after_ns=60 * SECOND,
    )
    actor = role("actor", min_replicas=2, max_replicas=12, restart=restart("replica", 20), primary=False)
    feed = Feed(graph(ps, trainer, actor, nodes=28))
    for at in range(10, 40):
        feed.step("trainer/0", 8 * at, at)
        feed.step("trainer/7", 8 * at - 3, at)
    feed.fail("trainer/3", 41)
    feed.tell(ev.CordonRequested("node4"), 50)
    feed.tell(ev.DrainRequested("node5"), 55)
    for at in range(60, 90):
        feed.step("trainer/0", 300 + 4 * (at - 60), at)
    feed.tell(ev.NodeSilent("node9"), 100)
    for at in range(101, 120):
        feed.step("trainer/0", 420 + 5 * (at - 100), at)
    feed.held |= {"actor/3", "actor/7", "actor/8", "ps/1"}
    for name in ("actor/3", "actor/7", "actor/8", "ps/1"):
        feed.fail(name, 120)
    feed.tell(ev.ReplicaStalled(r("trainer/11"), 4, "output", 60 * SECOND, was_seen=False), 121)
    feed.tell(ev.ScaleRequested("trainer", 999), 121.5)
    return feed


def test_200_replicas_fit_a_screen_and_are_read_at_a_glance() -> None:
    status = big_job().status(125)
    assert len(status_text(status).splitlines()) <= 45
    assert status_text(status) == GOLDEN.read_text()


@pytest.mark.parametrize("height", [3, 6, 8, 12, 16, 24, 60])
def test_a_picture_is_never_higher_than_there_is_room(height: int) -> None:
    status = big_job().status(125)
    lines = [plain(line) for line in fitted(status, height)]
    assert 0 < len(lines) <= height and lines[0].startswith("big-20261121-1  running  after 2m5s")
    if height >= 12:
        assert any("trainer  " in line for line in lines) and any("stalled" in line for line in lines)


def test_what_is_left_out_is_counted() -> None:
    lines = [plain(line) for line in fitted(big_job().status(125), 14)]
    assert any(line.startswith("  and ") and line.endswith(" more lines") for line in lines)


def test_a_gang_that_starts_again_is_one_line_and_not_200() -> None:
    feed = big_job()
    feed.held |= {f"trainer/{number}" for number in range(200)}
    feed.fail("trainer/0", 130)
    told = status_text(feed.status())
    assert told.count("stopping: ") == 1 and "trainer/1 (attempt 4, node" in told and "and 178 more" in told


def test_a_start_is_not_unusual_and_neither_is_a_role_that_waits_for_its_gate() -> None:
    server = role("ps", kind="service", ready=TCP, ports=("rpc",))
    feed = Feed(
        graph(server, role("trainer", min_replicas=8, max_replicas=8, gates=(Gate("ps", "succeeded"),)), nodes=2)
    )
    told = status_text(feed.status())
    assert "trainer  0/8  8 waiting" in told and "trainer/0" not in told


def test_a_role_that_was_scaled_down_is_full() -> None:
    feed = Feed(graph(role("trainer", max_replicas=4), nodes=1))
    feed.tell(ev.ScaleRequested("trainer", 2), 1)
    assert "trainer  2/2  2 running" in status_text(feed.status())


def test_the_end_of_a_job_is_shown_with_its_reason() -> None:
    feed = Feed(graph(role("ps", kind="service"), role("trainer"), nodes=1))
    feed.fail("trainer/0", 3)
    feed.tell(ev.ReplicaStopped(r("ps/0"), 1), 3)
    told = status_text(feed.status())
    assert told.startswith("big-20261121-1  failed  after 3s") and "trainer/0 failed on node0" in told.splitlines()[1]
    assert "  trainer  -   failed " in told and "  ps       -   stopped " in told
    assert status_text(feed.status(), state="died").startswith("big-20261121-1  died")


def test_of_a_run_that_died_nothing_runs_any_more() -> None:
    feed = Feed(graph(role("ps", kind="service"), role("trainer", max_replicas=2), nodes=2))
    assert "  trainer  2/2  2 running" in status_text(feed.status())
    told = status_text(feed.status(), state="died")
    assert "  trainer  0/2  2 were running " in told and "  ps       0/1  1 was running " in told
    assert "\nnodes  2 of 2 were up  ==\n" in told and "2 of 2 up" not in told


def test_names_of_more_nodes_than_can_be_drawn_are_counted() -> None:
    feed = Feed(graph(role("trainer"), nodes=70, cpu=1))
    for number in range(1, 15):
        feed.tell(ev.NodeSilent(f"node{number}"), 1)
    told = status_text(feed.status())
    assert "nodes  56 of 70 up\n" in told
    assert "  x lost node1, node2, node3, node4, node5, node6 and 8 more: not heard for 5s\n" in told


def test_a_node_that_has_not_been_heard_for_a_while_is_named_before_it_is_lost() -> None:
    status = Feed(graph(role("trainer"), nodes=3)).status()
    heard = [msgspec.structs.replace(n, heard_s_ago=s) for n, s in zip(status.nodes, (0.4, 3.2, None), strict=True)]
    assert "  ! no heartbeat: node1 for 3s\n" in status_text(msgspec.structs.replace(status, nodes=tuple(heard)))


def test_gpus_that_are_bad_are_named_with_their_reason() -> None:
    feed = Feed(graph(role("trainer"), nodes=2))
    feed.tell(ev.NodeJoined("node1", NodeSpec("node1", gpu=2), incarnation=2, bad_gpus=((1, "Xid 79"),)))
    feed.tell(ev.GpuFailed("node1", 0, "Xid 48", 48))
    assert "  x node1 without GPU 1: Xid 79, GPU 0: Xid 48\n" in status_text(feed.status())


def test_members_that_wait_for_a_machine_are_named_with_the_reason_of_the_engine() -> None:
    fleet = FleetState([
        Member("m1", "", reference="70", host="h1", is_pending=False, has_joined=True),
        Member("m2", "", reference="71", host="h2", is_pending=False),
        Member("m3", "", reference="72", waits="PENDING (PartitionConfig)"),
        Member("m4", "", reference="73", waits="PENDING (PartitionConfig)"),
        Member("m5", "", reference="74", is_pending=False, has_joined=True, leaving="h5 is taken away in 1m"),
        Member("m6", ""),
        Member("m7", "", reference="76", waits="PENDING (Resources)", ended="the job needs fewer members"),
    ])  # fmt: skip
    feed = Feed(graph(role("trainer")))
    assert "members" not in status_text(feed.status())
    status = msgspec.structs.replace(feed.status(), members=members_of(fleet))
    assert (
        "\nmembers  1 joined, 1 starting, 2 waiting, 1 leaving, 1 submitting\n"
        "  waiting m3 (72), m4 (73): PENDING (PartitionConfig)\n"
        "  leaving m5 (74): h5 is taken away in 1m\n"
    ) in status_text(status)
    assert msgspec.json.decode(msgspec.json.encode(status), type=Status) == status


def test_versions_are_listed_by_replica() -> None:
    edge = VersionEdge("learner", 1)
    actor = role("actor", max_replicas=2, primary=False, restart=restart("replica"), versions=edge)
    feed = Feed(graph(role("learner", restart=restart()), actor))
    assert "  learner has published no version yet; actor may be 1 behind\n" in status_text(feed.status())
    feed.tell(ev.ReplicaPublished(r("learner/0"), 1, 7))
    feed.tell(ev.ReplicaAcknowledged(r("actor/0"), 1, 6))
    feed.tell(ev.ReplicaAcknowledged(r("actor/1"), 1, 5))
    told = status_text(feed.status())
    assert "  learner has published version 7; actor may be 1 behind\n" in told
    assert "    version 6: actor/0\n    version 5: actor/1, not ready\n" in told


def test_a_job_in_a_line() -> None:
    line = one_line(big_job().status(125))
    assert line.startswith(
        "2m5s running: ps 2/3, trainer 185/200 step 515 (5.0/s), actor 9/12; nodes 25/28, incidents "
    )


def test_the_limits_get_tighter() -> None:
    status = big_job().status(125)
    heights = [len(fitted(status, height)) for height in range(40, 2, -1)]
    assert heights == sorted(heights, reverse=True) and len(TIGHTER) > 3
    assert len(fitted(msgspec.structs.replace(status, roles=status.roles * 30), 40)) <= 40


if __name__ == "__main__":
    GOLDEN.write_text(status_text(big_job().status(125)))
