"""The paced checker: a large job is checked in full now and then, and in part after each event."""

from __future__ import annotations

import copy
from functools import cache

import pytest

from flowdist.control.controller import Controller
from flowdist.control.invariants import SHARE, SMALL, InvariantChecker, check_job
from flowdist.control.job.state import JobState
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import CloseStore, Effect
from flowdist.graph import SECOND, RestartPolicy
from flowdist.graph.capacity import Capacity
from tests.control.harness import graph, r, role
from tests.control.test_invariants import SEEN_AT_ONCE, SEEN_SOON, Spoil, assign, count, job_that_runs

MANY = 2 * SMALL
TURN = 2 * MANY // SHARE  # events from one check of everything to the next: as many nodes as replicas
ELSEWHERE = ev.NodeLeft("elsewhere")


@cache
def _running(nodes: int) -> JobState:
    """Return a job of a gang and of loose workers, half of the replicas each, which fill the nodes."""
    loose = RestartPolicy("replica", max_restarts=2)
    roles = (
        role("trainer", min_replicas=MANY // 2, max_replicas=MANY // 2, restart=RestartPolicy("role"), gang=True),
        role("actor", restart=loose, min_replicas=1, max_replicas=MANY // 2),
    )
    topology = graph(*roles, nodes=nodes, cpu=MANY / nodes)
    controller = Controller(topology, tuple(spec.name for spec in topology.cluster.nodes))
    for spec in topology.cluster.nodes:
        controller.handle(ev.NodeJoined(spec.name, spec, incarnation=1), 0)
    for name in controller.state.worlds:
        controller.handle(ev.StoreOpened(name, 1, 29500), 0)
    for id, replica in controller.state.replicas.items():
        controller.handle(ev.ReplicaStarted(id, replica.attempt), 0)
    assert controller.state.live_at == {0: MANY}
    check_job(controller.state)
    return controller.state


class Run:
    """A large job and its paced checker, after the first check, which is a full one."""

    def __init__(self, nodes: int = MANY) -> None:
        self.job, self.checker, self.lines = copy.deepcopy(_running(nodes)), InvariantChecker("paced"), 0
        self.after(ELSEWHERE)

    def after(self, event: ev.Event, *effects: Effect) -> None:
        self.lines += 1
        self.checker.note(self.job, event, effects, self.lines, self.lines * SECOND)
        self.checker.check(self.job)


@pytest.mark.parametrize(("spoil", "words"), SEEN_AT_ONCE + SEEN_SOON)
def test_of_a_small_job_everything_is_checked_after_each_event(spoil: Spoil, words: str) -> None:
    job, checker = job_that_runs(), InvariantChecker("paced")
    checker.note(job, ELSEWHERE, (), 1, SECOND)
    checker.check(job)
    spoil(job)
    checker.note(job, ELSEWHERE, (), 2, 2 * SECOND)
    with pytest.raises(AssertionError, match=words) as caught:
        checker.check(job)
    assert "everything held" not in str(caught.value)


AT_ITS_EVENT: list[tuple[Spoil, ev.Event, str]] = [
    (assign("nodes node5 free", Capacity(9, 0, 0)), ev.NodeLeft("node5"), "node5 has"),
    (assign("nodes node5 cordoned", "bad"), ev.ReplicaReady(r("trainer/5"), 1), "node5 is offered"),
    (lambda job: job.candidate_indexes[0].put("node5", (-9, 1, "node5")), ev.NodeSuspected("node5"), "fits on"),
    (assign("replicas trainer/5 gpus", (0,)), ev.ReplicaReady(r("trainer/5"), 1), "has 1 GPUs, not 0"),
    (assign("replicas trainer/5 node", None), ev.ReplicaReady(r("trainer/5"), 1), "is running without a node"),
    (assign("worlds trainer generation", 9), ev.ReplicaReady(r("trainer/5"), 1), "trainer mixes generations"),
]


@pytest.mark.parametrize(("spoil", "event", "words"), AT_ITS_EVENT)
def test_what_an_event_speaks_of_is_checked_after_it(spoil: Spoil, event: ev.Event, words: str) -> None:
    run = Run()
    run.after(ev.ReplicaReady(r("trainer/7"), 1))
    spoil(run.job)
    with pytest.raises(AssertionError, match=rf"(?s){words}.*seen after event 3; everything held after event 1, at 1s"):
        run.after(event)


def test_what_an_effect_speaks_of_is_checked_too() -> None:
    run = Run()
    assign("nodes node9 cordoned", "bad")(run.job)
    run.after(ELSEWHERE)
    with pytest.raises(AssertionError, match="node9 is offered"):
        run.after(ELSEWHERE, CloseStore("node9", "trainer", 1))


@pytest.mark.parametrize(
    "spoil",
    [
        assign("nodes node5 free", Capacity(1, 1, 1)),
        assign("replicas actor/5 attempt", 0),
        count("worlds trainer counts", "running"),
        count("roles actor seated", "running"),
        lambda job: job.usable.pop(),
        lambda job: job.open.update({1: None}),
    ],
)
def test_what_is_wrong_elsewhere_is_seen_when_all_is_checked_and_said_to_be_older(spoil: Spoil) -> None:
    run = Run()
    spoil(run.job)
    for _ in range(TURN - 1):
        run.after(ELSEWHERE)
    with pytest.raises(AssertionError, match=rf"seen after event {TURN + 1}; everything held after event 1, at 1s"):
        run.after(ELSEWHERE)


def test_while_all_is_right_the_check_of_everything_comes_again_and_again() -> None:
    run = Run()
    for _ in range(3 * TURN):
        run.after(ELSEWHERE)
    run.job.usable.pop()
    for _ in range(TURN - 1):
        run.after(ELSEWHERE)
    with pytest.raises(AssertionError, match=f"everything held after event {3 * TURN + 1}"):
        run.after(ELSEWHERE)


def test_a_node_with_very_many_replicas_waits_for_the_check_of_everything() -> None:
    run = Run(nodes=1)
    run.job.nodes["node0"].free = Capacity(1, 1, 1)
    run.after(ev.NodeSuspected("node0"))
    with pytest.raises(AssertionError, match="node0 has"):
        for _ in range(TURN):
            run.after(ELSEWHERE)


def test_news_of_progress_pay_for_no_check_of_a_large_job() -> None:
    run = Run()
    run.job.usable.pop()
    for _ in range(2 * TURN):
        run.after(ev.ReplicaProgressed(r("trainer/5"), 1, 7))
    with pytest.raises(AssertionError, match="are usable"):
        for _ in range(TURN):
            run.after(ELSEWHERE)


def test_a_replica_that_has_lost_its_seat_is_right_where_it_is() -> None:
    run = Run()
    controller, node = Controller(run.job.graph), run.job.replicas[r("actor/5")].node
    controller.state = run.job
    assert node is not None
    gone = ev.NodeGone(node)
    run.after(gone, *controller.handle(gone, 0))
    assert run.job.replicas[r("actor/5")].node is None
    run.after(ev.ReplicaStopped(r("actor/5"), 1))
