"""An event about one node is as much work among three hundred nodes as among ten: steps are counted, not time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import CodeType, FrameType

import pytest

import flowdist
from flowdist.control.connection.sessions import Sessions
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.messages import Heartbeat, Join
from flowdist.graph import HOUR, SECOND, Gate, JobOptions, RoleGraph
from tests.control.harness import TCP, Talk, graph, node, r, restart, role

FEW, MANY = 10, 300
FLOWDIST = f"{Path(flowdist.__file__).parent}/"
COUNTER = 4  # the number in sys.monitoring of the tool that counts: one that no known tool uses


class Steps:
    """How many bytecodes of flowdist were executed while it was counted."""

    def __init__(self) -> None:
        self.taken = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self._monitored() if sys.version_info >= (3, 12) else self._traced():
            yield

    @contextmanager
    def _traced(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._note)
        try:
            yield
        finally:
            sys.settrace(before)

    def _note(self, frame: FrameType, what: str, _: object) -> Callable[..., object] | None:
        if not frame.f_globals["__name__"].startswith("flowdist."):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.taken += what == "opcode"
        return self._note

    @contextmanager
    def _monitored(self) -> Iterator[None]:
        """Count with sys.monitoring: from Python 3.12 on, a tracer misses the bytecodes of code that it sees first."""
        seen = sys.monitoring
        seen.use_tool_id(COUNTER, "steps")
        seen.register_callback(COUNTER, seen.events.INSTRUCTION, self._note_instruction)
        seen.set_events(COUNTER, seen.events.INSTRUCTION)
        try:
            yield
        finally:
            seen.set_events(COUNTER, seen.events.NO_EVENTS)
            seen.free_tool_id(COUNTER)

    def _note_instruction(self, code: CodeType, _: int) -> object:
        if not code.co_filename.startswith(FLOWDIST):
            return sys.monitoring.DISABLE
        self.taken += 1
        return None


class Job:
    """A job that runs, an hour after its start. Its agents answer at once; only when it is said do replicas start."""

    def __init__(self, graph: RoleGraph, *, starts: bool = True) -> None:
        self.talk, self.starts, self.now, self.steps = Talk(graph), starts, 0, Steps()
        self.tell(*(ev.NodeJoined(spec.name, spec) for spec in graph.cluster.nodes))
        self.now = HOUR

    def tell(self, *events: ev.Event) -> None:
        """The events, and all the answers to what follows."""
        queue = list(events)
        while queue:
            event = queue.pop(0)
            with self.steps.counted() if self.now else nullcontext():
                effects = self.talk.controller.handle(event, self.now)
            for effect in effects:
                if self.starts or not isinstance(effect, StartReplica):
                    queue += self.talk._answers(effect)

    def node_of(self, name: str) -> str:
        return self.talk.replica(name).node


def gang(n: int, **options: bool) -> Job:
    trainer = role("trainer", min_replicas=n, max_replicas=n, ready=TCP, restart=restart())
    return Job(graph(trainer, nodes=n, cpu=1), **options)


def workers(n: int, spare: int = 0, **fields: object) -> Job:
    fields = {"min_replicas": n, "max_replicas": n, "restart": restart("replica"), **fields}
    return Job(graph(role("worker", **fields), nodes=n + spare, cpu=1))


def the_start_of_a_member(n: int) -> Steps:
    job = gang(n, starts=False)
    job.tell(ev.ReplicaStarted(r("trainer/3"), 1), ev.ReplicaReady(r("trainer/3"), 1))
    return job.steps


def progress(n: int) -> Steps:
    job = gang(n)
    job.tell(ev.ReplicaProgressed(r("trainer/3"), 1, 7))
    return job.steps


def an_offered_checkpoint(n: int) -> Steps:
    job = gang(n)
    job.tell(ev.CheckpointOffered(r("trainer/3"), 1, 1, "/checkpoints/7", 7))
    return job.steps


def a_member_that_stalls(n: int) -> Steps:
    job = gang(n)
    job.tell(ev.ReplicaStalled(r("trainer/3"), 1, "output", 60 * SECOND), ev.ReplicaRevived(r("trainer/3"), 1))
    return job.steps


def a_member_that_finishes(n: int) -> Steps:
    job = gang(n)
    job.tell(ev.ReplicaExited(r("trainer/3"), 1))
    return job.steps


def a_worker_that_finishes(n: int) -> Steps:
    job = workers(n)
    job.tell(ev.ReplicaExited(r("worker/3"), 1))
    return job.steps


def a_worker_that_restarts(n: int) -> Steps:
    job = workers(n)
    job.tell(ev.ReplicaExited(r("worker/3"), 1, "exit", 1))
    return job.steps


def a_worker_that_is_ignored(n: int) -> Steps:
    job = workers(n, min_replicas=1, restart=restart("replica", 0, then="ignore"))
    job.tell(ev.ReplicaExited(r("worker/3"), 1, "exit", 1))
    return job.steps


def a_server_that_restarts(n: int) -> Steps:
    size = {"min_replicas": n, "max_replicas": n}
    server = role("server", kind="service", ports=("rpc",), ready=TCP, restart=restart("replica"), **size)
    trainer = role("trainer", gates=(Gate("server", "ready"),), restart=restart(), **size)
    job = Job(graph(server, trainer, nodes=n, cpu=2))
    job.tell(ev.ReplicaExited(r("server/3"), 1, "exit", 1))
    return job.steps


def a_node_that_is_lost_with_room_elsewhere(n: int) -> Steps:
    return _lost(workers(n, spare=1))


def a_node_that_is_lost_without_room_elsewhere(n: int) -> Steps:
    return _lost(workers(n))


def _lost(job: Job) -> Steps:
    """It dies, and is back a moment later."""
    name = job.node_of("worker/3")
    job.tell(ev.NodeGone(name))
    job.now += SECOND
    job.tell(ev.NodeJoined(name, node(name, cpu=1), incarnation=2))
    assert job.talk.replica("worker/3").attempt == 2
    return job.steps


def a_node_that_is_drained(n: int) -> Steps:
    job = workers(n, spare=1)
    job.tell(ev.DrainRequested(job.node_of("worker/3")), ev.StepTold(r("worker/3"), 1, None))
    assert job.talk.replica("worker/3").attempt == 2
    return job.steps


def a_heartbeat(n: int) -> Steps:
    sessions, steps = Sessions(JobOptions()), Steps()
    for i in range(n):
        sessions.hear(Join(f"node{i}", 1, node(f"node{i}"), "127.0.0.1", 0), now=0)
    with steps.counted():
        sessions.hear(Heartbeat("node3", 1, 0), now=SECOND)
        sessions.detector.deadline()
    return steps


@pytest.mark.parametrize(
    "story",
    [
        the_start_of_a_member,
        progress,
        an_offered_checkpoint,
        a_member_that_stalls,
        a_member_that_finishes,
        a_worker_that_finishes,
        a_worker_that_restarts,
        a_worker_that_is_ignored,
        a_server_that_restarts,
        a_node_that_is_lost_with_room_elsewhere,
        a_node_that_is_lost_without_room_elsewhere,
        a_node_that_is_drained,
        a_heartbeat,
    ],
)
def test_it_is_the_same_work_in_a_job_of_ten_nodes_and_of_three_hundred(story):
    few, many = story(FEW).taken, story(MANY).taken
    assert 0 < few == many
