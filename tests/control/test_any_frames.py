"""Frames that no honest agent would send, well typed, from three connections: each journal replays, and no part raises.

The frames of a session are drawn from names and numbers of its job and others. Honest agents answer the orders between
them, and time passes. The journal has to give an equal controller, with equal time accounts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest

from flowdist.control.connection.objections import objection, objection_to_proof
from flowdist.control.connection.sessions import Sessions
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.effects import AskStep, OpenStore, Order, StartReplica, StopReplica, is_order
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import SECOND, Gate, NodeSpec, Readiness, RoleGraph
from flowdist.record.journal import Header, decode_line, encode_line
from flowdist.record.replay import Replay
from flowdist.record.status import status_of
from tests.choosing import examples
from tests.control.harness import graph, node, restart, role

NODES = ("node0", "node1", "node2")
FRAMES = 12  # of a session
TCP = Readiness("tcp", "rpc")
NUMBERS = (0, 1, 2, 3, -1, 79, 29500, 1 << 40, (1 << 63) - 1, -(1 << 63))
TEXTS = ("", "it is bad", "node1", "\x1b[31m\r\n\x00", "x" * 70_000)


def graphs() -> list[RoleGraph]:
    ps = role(
        "ps", kind="service", ports=("rpc",), ready=TCP, restart=restart("replica"), min_replicas=2, max_replicas=2
    )
    gated = (Gate("ps", "ready", on_restart="restart"),)
    return [
        graph(role("trainer", min_replicas=2, max_replicas=4), nodes=3, cpu=2),
        graph(ps, role("trainer", min_replicas=3, max_replicas=3, gates=gated), nodes=3, cpu=2),
        graph(
            role("trainer", min_replicas=2, max_replicas=2, hang_after_ns=SECOND),
            role("loose", restart=restart("replica")),
            nodes=3,
        ),
    ]


class Liar:
    """Draws frames. Every field of a name has a pool of values; about half of them mean something in the job."""

    def __init__(self, draw: random.Random, job: Any) -> None:
        self._draw, self._job = draw, job

    def frame(self) -> msg.ToController:
        kind = self._draw.choice([msg.Report] * 6 + [msg.Join, msg.Heartbeat, msg.Preempted, msg.Leave])
        return self._build(kind)

    def order(self) -> Any:
        """Return what the operator or the supervisor may say: their connection, a local one, needs no sender."""
        kinds = (ev.ScaleRequested, ev.DrainRequested, ev.CordonRequested, ev.UncordonRequested, ev.CancelRequested)
        return self._build(self._draw.choice((*kinds, ev.NodePreempted, ev.NodeGone)))

    def sender(self) -> str:
        return self._draw.choice(NODES)

    def number(self) -> int:
        return self._draw.choice(NUMBERS)

    def _build(self, kind: Any) -> Any:
        return kind(**{name: self._field(kind, name) for name in kind.__struct_fields__})

    def _field(self, kind: type, name: str) -> Any:
        pick = self._draw.choice
        pools: dict[str, Callable[[], Any]] = {
            "node": lambda: pick((*NODES, *NODES, "node9", "")),
            "replica": lambda: pick((*self._job.replicas, ReplicaId("nosuch", 7), ReplicaId("trainer", -1))),
            "role": lambda: pick((*self._job.roles, "nosuch")),
            "replicas": self.number,
            "world": lambda: pick((*self._job.worlds, "nosuch")),
            "spec": self._spec,
            "event": lambda: self._build(pick(get_args(msg.Reported))),
            "inventory": lambda: tuple(self._build(ev.InventoryItem) for _ in range(pick((0, 0, 1, 2)))),
            "exited": lambda: pick((None, self._build(ev.ReplicaExited))),
            "phase": lambda: pick(("starting", "running", "ready", "suspended", "stopped", "exited", "odd")),
            "outcome": lambda: pick(("cancelled", "failed")),
            "kind": lambda: pick((None, "exit", "signal", "oom", "hang")),
            "by": lambda: pick(("progress", "output", "start")),
            "ports": lambda: pick(((), (("rpc", 4000),), (("rpc", 1 << 40),), (("odd", -1),))),
            "bad_gpus": lambda: pick(((), ((0, "bad"),), ((1 << 40, "bad"),))),
            "signal": lambda: pick((None, "KILL", "\x1b]0;title\x07")),
            "cause": lambda: pick(("", "collective_timeout", "odd") if kind is ev.ReplicaExited else TEXTS),
            "step": lambda: pick((None, *NUMBERS) if kind is ev.StepTold else NUMBERS),
        }
        texts = ("detail", "reason", "path", "address", "cause")
        flags = ("now", "suspended", "was_seen", "is_warming")
        if name in pools:
            return pools[name]()
        return pick(TEXTS if name in texts else (False, True) if name in flags else NUMBERS[: pick((4, len(NUMBERS)))])

    def _spec(self) -> NodeSpec:
        cpu = self._draw.choice((2.0, 8.0, math.nan, math.inf, 1e308, -1.0))
        gpu = self._draw.choice((0, 2, 10**9))
        return NodeSpec(self._draw.choice(NODES), cpu=cpu, gpu=gpu)


class Session:
    """A controller with its journal, three honest agents, and connections that may say anything.

    The honest part is the same for one seed, whatever is said besides.
    """

    def __init__(self, job: RoleGraph, seed: int) -> None:
        self.draw = random.Random(seed)
        self.header = Header(job, NODES)
        self.replay = Replay(self.header)
        self.sessions = Sessions(job.options)
        self.journal = [encode_line(self.header)]
        self.now = self.refused = 0
        self.orders: list[Order] = []
        self.incarnations = dict.fromkeys(NODES, 0)
        self.cpu = dict.fromkeys(NODES, 2.0)
        self.liar = Liar(random.Random(-seed - 1), self.replay.job)

    def run(self, lie: Callable[[], None]) -> None:
        for name in NODES:
            self.join(name)
        for _ in range(FRAMES):
            for _ in range(self.draw.randrange(8)):
                self.obey()
            self.pass_time(self.draw.choice((0, SECOND // 10, 3 * SECOND, 20 * SECOND)))
            lie()
            if self.draw.random() < 0.2:
                self.join(self.draw.choice(NODES[:2]))

    def lie_as_anybody(self) -> None:
        self.hear(self.liar.frame(), self.liar.sender())
        if self.liar.sender() == "node1":
            self.prove_death()
        if self.liar.number() == -1:
            order = self.liar.order()
            self.sessions.note(order)
            self.decide(order)

    def hear(self, message: msg.ToController, sender: str) -> None:
        try:
            message = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=msg.ToController)
        except msgspec.ValidationError:  # the connection is closed
            self.refused += 1
            return
        if objection(message, self.replay.job, sender):
            self.refused += 1
            return
        for event in self.sessions.hear(message, self.now).events:
            self.decide(event)

    def prove_death(self) -> None:
        sender, name, incarnation = self.liar.sender(), self.liar.sender(), self.liar.number()
        if not objection_to_proof(name, incarnation, sender):
            for event in self.sessions.gone(name, incarnation, "killed"):
                self.decide(event)

    def decide(self, event: ev.Event) -> None:
        line = self.replay.decide(event, self.now)
        self.journal.append(encode_line(line))
        self.orders += [effect for effect in line.effects if is_order(effect)]

    def join(self, name: str) -> None:
        self.incarnations[name] += 1
        self.orders = [order for order in self.orders if order.node != name]
        self.hear(msg.Join(name, self.incarnations[name], node(name, cpu=self.cpu[name]), "127.0.0.1", 0), name)

    def obey(self) -> None:
        """Carry out the oldest order as an honest agent does, and report it."""
        order = self.orders.pop(0) if self.orders else None
        match order:
            case OpenStore():
                self.report(order.node, ev.StoreOpened(order.world, order.generation, 29500))
            case StartReplica():
                ports = tuple((port, 4000) for port in self.header.graph.role(order.replica.role).ports)
                self.report(order.node, ev.ReplicaStarted(order.replica, order.attempt, ports))
                self.report(order.node, ev.ReplicaReady(order.replica, order.attempt))
                self.report(order.node, ev.ReplicaProgressed(order.replica, order.attempt, self.draw.randrange(9)))
            case StopReplica():
                self.report(order.node, ev.ReplicaStopped(order.replica, order.attempt, order.in_place))
            case AskStep():
                self.report(order.node, ev.StepTold(order.replica, order.attempt, 5))
            case _:
                pass

    def report(self, name: str, event: Any) -> None:
        self.hear(msg.Report(name, self.incarnations[name], event), name)

    def pass_time(self, ns: int) -> None:
        self.now += ns
        for name in NODES:
            self.hear(msg.Heartbeat(name, self.incarnations[name], self.now), name)
        for event in self.sessions.detector.expire(self.now):
            self.decide(event)
        due = self.replay.controller.deadline()
        if due is not None and due <= self.now:
            self.decide(ev.TimePassed())


@pytest.mark.parametrize("part", range(4))
def test_every_journal_replays_whatever_well_typed_frames_were_sent(part: int) -> None:
    jobs, refused, count = graphs(), 0, examples(50, 500)
    for seed in range(part * 500, part * 500 + count):
        session = Session(jobs[seed % len(jobs)], seed)
        try:
            session.run(session.lie_as_anybody)
            lines = list(map(decode_line, session.journal))
            again = Replay(session.header, strict=True).follow(lines)
            assert again.job == session.replay.job
            assert again.sheet.spent(session.now) == session.replay.sheet.spent(session.now)
            status_of(again.job, again.decisions, "run", session.now, again.sheet.spent(session.now))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        refused += session.refused
    assert refused > count  # most frames are no honest ones


def of_others(session: Session) -> list[object]:
    """Return all of the state that is not about node2."""
    job = session.replay.job
    nodes = {name: each for name, each in job.nodes.items() if name != "node2"}
    return [nodes, job.replicas, job.worlds, job.roles, job.incidents, job.outcome, job.ending_reason]


def test_a_node_on_which_nothing_runs_changes_nothing_for_others_whatever_it_says() -> None:
    jobs = graphs()
    for seed in range(examples(60, 600)):
        honest, lied = Session(jobs[seed % len(jobs)], seed), Session(jobs[seed % len(jobs)], seed)
        honest.cpu["node2"] = lied.cpu["node2"] = 0  # nothing has room there
        honest.run(lambda: None)

        def lie(session: Session = lied) -> None:
            frame = session.liar.frame()
            if (not isinstance(frame, msg.Join) and frame.node == "node2") or session.liar.number() == 1:
                session.hear(frame, "node2")

        lied.run(lie)
        assert of_others(lied) == of_others(honest), f"seed {seed}"
