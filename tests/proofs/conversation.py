"""Property of the controller alone: random events in random order keep every invariant, and the job can end.

A conversation is the exchange of events and orders between one controller and a model of its nodes, the `Player`, which
a list of random moves drives. Reports arrive late, twice, or from attempts that have ended; orders are carried out late
and in any order. No report says that something has ended which still runs. After the last move there are no more
faults: the remaining orders are carried out, time passes and tasks finish, until the job has ended or names what it
waits for.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from hypothesis import strategies as st

from flowdist.control.controller import Controller
from flowdist.control.invariants import check_job
from flowdist.control.membership.waiting import waiting_for
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import (
    AskStep,
    CloseStore,
    OpenStore,
    Order,
    StartReplica,
    StopAtStep,
    StopReplica,
)
from flowdist.control.protocol.ids import ExitCause, NodeName, ReplicaId
from flowdist.graph import SECOND, FailureKind, RoleGraph
from flowdist.record.journal import Header, Line, Record, record
from flowdist.sim.engine.queue import CRASHES
from flowdist.testing.strategies import FAILURES, NODES, topologies
from tests.proofs.judge.restart_rules import Complaint, complaints, crash

Verb = Literal[
    "calm", "obey", "join", "lose", "exit", "finish", "live", "offer", "stall", "repeat", "wait", "scale", "operate",
    "preempt", "unkillable", "leave", "restart", "arrive", "elastic", "quiet", "gpu",
]  # fmt: skip
VERBS: tuple[Verb, ...] = (
    *("calm", "calm", "calm", "exit", "exit", "wait", "wait", "join", "lose", "obey", "finish", "live", "offer"),
    *("stall", "repeat", "scale", "operate", "preempt", "unkillable", "leave", "restart", "arrive", "finish"),
    *("unkillable", "arrive", "elastic", "elastic", "quiet", "gpu"),
)
WAITS = (400, 31, 61, 400, 1)
ORDERS = (OpenStore, StartReplica, StopReplica, CloseStore, AskStep, StopAtStep)
REPORTS = (
    *(ev.ReplicaStarted, ev.ReplicaReady, ev.ReplicaProgressed, ev.ReplicaExited, ev.ReplicaStopped),
    *(ev.ReplicaStepped, ev.ReplicaSpent, ev.CheckpointOffered, ev.StoreOpened, ev.StoreLost, ev.StepTold),
)
END_ROUNDS_MAX = 1500
Attempt = tuple[ReplicaId, int]  # a replica, and the number of one start of it


class Move(NamedTuple):
    """One random action of the nodes, the operator or time.

    `which` selects the node, replica, role, order or time that it concerns, and `how` a variant of the action. Both are
    taken modulo the number of choices, so that any numbers do.
    """

    verb: Verb
    which: int = 0
    how: int = 0


class Conversation(NamedTuple):
    """Case of `judge_conversation`: a job, the moves, and `late`, the number of nodes that are missing at the start."""

    graph: RoleGraph
    late: int
    moves: tuple[Move, ...]


def conversations() -> st.SearchStrategy[Conversation]:
    """Return a Hypothesis strategy for cases, whose moves are single ones and sequences that matter together."""
    # Hypothesis chooses evenly among all branches, and `_pairs` has ten: single moves get two, or they are too rare.
    alone = [_moves(VERBS).map(lambda move: (move,)) for _ in range(2)]
    lists = st.lists(st.one_of(*alone, _pairs()), max_size=16)
    moves = lists.map(lambda parts: [move for part in parts for move in part])
    graphs = st.booleans().flatmap(lambda gpus: topologies(gpus=gpus))
    return st.builds(Conversation, graphs, st.sampled_from([0, 1]), moves.map(tuple))


def _moves(verbs: tuple[Verb, ...]) -> st.SearchStrategy[Move]:
    return st.builds(Move, st.sampled_from(verbs), st.integers(0, 7), st.integers(0, 9))


def _pairs() -> st.SearchStrategy[tuple[Move, ...]]:
    """Return a Hypothesis strategy for two or three moves that show more together, often of a closing world (R17)."""
    closing = [
        st.tuples(_moves(("finish",)), st.sampled_from([Move("arrive"), Move("arrive"), Move("wait")]))
        for _ in range(4)
    ]
    others = st.tuples(_moves(("lose", "exit", "stall")), _moves(("wait", "arrive", "unkillable", "repeat")))
    hits, then = (
        _moves(("exit", "exit", "lose", "arrive", "operate")),
        _moves(("obey", "lose", "operate", "exit", "calm")),
    )
    staying = st.tuples(_moves(("elastic",)), hits, then)
    silent = st.tuples(_moves(("quiet",)), _moves(("exit", "exit", "lose")))
    late = st.tuples(_moves(("exit", "exit", "lose")), st.just(Move("calm")), _moves(("repeat",)))
    offered = st.tuples(st.just(Move("calm")), _moves(("offer",)))
    broken = st.tuples(_moves(("gpu",)), _moves(("exit", "lose", "calm")))
    return st.one_of(*closing, others, staying, silent, late, offered, broken)


def judge_conversation(conversation: Conversation) -> list[Complaint]:
    """Play the conversation and return what is wrong; empty if nothing is.

    That is the first of these to find something: a crash or a broken invariant, the rules that the record breaks, and a
    job that has not ended and names nothing that it waits for.
    """
    player = Player(conversation.graph)
    try:
        player.play(conversation.moves, late=conversation.late)
        found = player.finish()
    except CRASHES as error:
        return [crash(error)]
    return complaints(player.lines) or found


class Player:
    """Model of the nodes of a job and their attempts, which exchanges events and orders with one controller.

    `now` is in ns since the start of the job. `lines` is the record so far, `up` the nodes that are up, and `alive` the
    start orders of the attempts that run. The methods raise what the controller raises, and AssertionError if an
    invariant of the job is broken. A subclass may `judge` each line; `wrong` is what it finds.
    """

    def __init__(self, graph: RoleGraph, nodes: tuple[NodeName, ...] = NODES) -> None:
        self.graph, self.now = graph, 0
        self.controller = Controller(graph, nodes)
        self.header = Header(graph, nodes)
        self.lines: list[Line] = [self.header]
        self.wrong: list[Complaint] = []
        self.incarnations: dict[NodeName, int] = {}
        self.up: dict[NodeName, None] = {}
        self.orders: list[Order] = []  # those not carried out yet
        self.alive: dict[Attempt, StartReplica] = {}
        self.suspended: dict[ReplicaId, StartReplica] = {}  # the attempt that each suspended replica has left
        self.past: list[ev.Event] = []

    def play(self, moves: tuple[Move, ...], late: int = 0) -> None:
        """Let all nodes but the last `late` join, carry out all orders that follow, and apply the moves."""
        for name in NODES[: len(NODES) - late]:
            self.join(name)
        if late:
            self.wait(max(role.join_window_ns for role in self.graph.roles) // SECOND)
        self.calm()
        for move in moves:
            self._apply(move)

    def send(self, event: ev.Event) -> None:
        """Have the controller handle the event now, record it with its effects, and check the job's invariants.

        Orders for nodes that are up are added to `orders`, which `obey` carries out.
        """
        effects = self.controller.handle(event, self.now)
        line = record(len(self.lines), self.now, event, effects)
        self.lines.append(line)
        self.past.append(event)
        self.orders += [effect for effect in effects if isinstance(effect, ORDERS) and effect.node in self.up]
        check_job(self.controller.state)
        self.judge(line)

    def judge(self, line: Record) -> None:
        """Add to `wrong` what is wrong with a line, after its event; nothing here."""

    def _apply(self, move: Move) -> None:
        match move.verb:
            case "calm":
                self.calm()
            case "obey":
                if self.orders:
                    self.obey(self.orders.pop(move.which % len(self.orders)))
            case "wait":
                self.wait(WAITS[move.which % len(WAITS)])
            case "scale":
                self.send(ev.ScaleRequested(self.graph.roles[move.which % len(self.graph.roles)].name, move.how % 5))
            case "restart":
                self.send(ev.ControllerStarted(self.controller.state.epoch + 1))
            case "repeat":
                kinds = (ev.ReplicaExited, ev.ReplicaStopped) if move.how % 2 else REPORTS
                if old := [event for event in self.past if isinstance(event, kinds)]:
                    self.send(old[-1 - (move.which * 10 + move.how) % len(old)])
            case "arrive":  # every missing node joins, and worlds have time to grow onto it
                for name in [name for name in NODES if name not in self.up]:
                    self.join(name)
                self.calm()
                self.wait(31)
            case "join" | "lose" | "quiet" | "operate" | "preempt" | "gpu":
                self._apply_to_node(NODES[move.which % 3], move)
            case _:
                self._apply_to_replica(move)

    def _apply_to_node(self, name: NodeName, move: Move) -> None:
        match move.verb:
            case "join":
                self.join(name)
            case "lose":
                self.lose(name, (ev.NodeGone, ev.NodeSilent, ev.NodeLeft)[move.how % 3])
            case "quiet":
                if name in self.up:
                    self.send(ev.NodeHeard(name) if move.how % 4 == 3 else ev.NodeSuspected(name))
            case "operate":
                self.send((ev.DrainRequested, ev.CordonRequested, ev.UncordonRequested)[move.how % 3](name))
            case "preempt":
                self.send(ev.NodePreempted(name, move.how % 2 * 30 * SECOND))
            case "gpu":
                if name in self.up:
                    self.send(ev.GpuFailed(name, move.how % 2, "Xid", 13 if move.how > 7 else 79))

    def _apply_to_replica(self, move: Move) -> None:
        """Apply the move to one of the running attempts, if there is one."""
        if not self.alive:
            return
        key = sorted(self.alive)[move.which % len(self.alive)]
        start, state = self.alive[key], self.controller.state
        match move.verb:
            case "exit":
                self.fail(key, FAILURES[move.how % len(FAILURES)])
            case "finish":
                self.fail(key, None)
            case "elastic":
                for other in self._in_world_of(start):
                    self.send(ev.ReplicaElastic(*other))
            case "live":
                steps = (ev.ReplicaProgressed(*key, move.how), ev.ReplicaStepped(*key, move.how))
                spent = ev.ReplicaSpent(*key, "saving", 1 + move.how)
                self.send((ev.ReplicaReady(*key), *steps, spent)[move.how % 4])
            case "offer":
                self.send(ev.CheckpointOffered(*key, start.generation - move.how % 2, f"step-{move.how}", move.how))
            case "stall" if move.how % 3:  # all members wait for the one that hangs, at its step or a later one
                for other in self._in_world_of(start):
                    self.send(ev.ReplicaStalled(*other, "progress", SECOND, move.how + (other != key)))
            case "stall":  # the same, and the collective of one of those that wait times out
                for other in self._in_world_of(start):
                    self.send(ev.ReplicaProgressed(*other, move.how + (other != key)))
                last = self._in_world_of(start)[-1]
                self.fail(last, "signal", signal="ABRT", cause="collective_timeout")
            case "leave":
                if state.worlds[start.world].notice is not None:
                    del self.alive[key]
                    self.send(ev.ReplicaStopped(*key))
            case "unkillable":
                if not self._stopping():
                    self.fail(key, "exit")  # so that its peers are stopping
                if stopping := self._stopping():  # with an odd number the node joins again at once
                    key = stopping[move.which % len(stopping)]
                    node = self.alive.pop(key).node
                    self.send(ev.ReplicaUnkillable(*key))
                    if move.how % 2:
                        self.join(node)
            case _:
                raise AssertionError(f"no code applies {move.verb}")

    def _in_world_of(self, start: StartReplica) -> list[Attempt]:
        return [key for key, other in self.alive.items() if other.world == start.world]

    def _stopping(self) -> list[Attempt]:
        replicas = self.controller.state.replicas
        return [key for key in sorted(self.alive) if replicas[key[0]].phase == "stopping"]

    def fail(
        self,
        key: Attempt,
        kind: FailureKind | None,
        code: int = 1,
        signal: str | None = None,
        cause: ExitCause = "",
    ) -> None:
        """Let a running attempt end by itself, and report that to the controller; orders to stop it are dropped.

        Where an elastic replica with several workers fails, the workers that did not fail are suspended.

        Args:
            key: The attempt, which has to run.
            kind: The kind of the failure; None: the attempt succeeds, with exit code 0.
            code: The exit code of a failure.
            signal: The signal that ended the worker, without SIG; None if it exited.
            cause: What made the worker fail, if its agent has recognised it.
        """
        start = self.alive.pop(key)
        self.orders = [o for o in self.orders if not (isinstance(o, StopReplica) and (o.replica, o.attempt) == key)]
        is_elastic = self.controller.state.replicas[start.replica].is_elastic
        suspended = is_elastic and kind is not None and self.controller.state.replicas[start.replica].procs > 1
        if suspended:
            self.suspended[start.replica] = start
        self.send(ev.ReplicaExited(*key, kind, code if kind else 0, signal, suspended=suspended, cause=cause))

    def records(self) -> list[Record]:
        return [line for line in self.lines if isinstance(line, Record)]

    def join(self, name: NodeName) -> None:
        """Let the node join with a new incarnation, on which nothing runs; if it is up, it loses what it ran."""
        if name in self.up:
            self._forget(name)
        self.incarnations[name] = self.incarnations.get(name, 0) + 1
        self.up[name] = None
        spec = next(spec for spec in self.graph.cluster.nodes if spec.name == name)
        self.send(ev.NodeJoined(name, spec, incarnation=self.incarnations[name]))

    def lose(
        self, name: NodeName, how: type[ev.NodeGone] | type[ev.NodeSilent] | type[ev.NodeLeft] = ev.NodeGone
    ) -> None:
        """End the node with everything on it, and send the event `how` about its loss; do nothing if it is not up."""
        if name in self.up:
            self._forget(name)
            del self.up[name]
            self.send(how(name))

    def _forget(self, name: NodeName) -> None:
        """Drop everything that runs on the node, and the orders for it that were not carried out."""
        self.orders = [order for order in self.orders if order.node != name]
        self.alive = {key: start for key, start in self.alive.items() if start.node != name}
        self.suspended = {replica: start for replica, start in self.suspended.items() if start.node != name}

    def wait(self, seconds: int) -> None:
        """Let `seconds` pass. The controller handles its deadlines; orders that follow are not carried out yet."""
        until = self.now + seconds * SECOND
        while self.pass_time(until):
            pass
        self.now = until
        self.send(ev.TimePassed())

    def pass_time(self, until: int | None = None) -> bool:
        """Let time pass to the controller's next deadline, and have the controller handle it.

        Returns:
            False, without any time passing, if the controller has no deadline, or none up to `until` (ns).
        """
        deadline = self.controller.deadline()
        if deadline is None or (until is not None and deadline > until):
            return False
        self.now = max(self.now, deadline)
        self.send(ev.TimePassed())
        return True

    def calm(self) -> None:
        """Carry out all orders, and those that follow from them, 300 at most."""
        for _ in range(300):
            if not self.orders:
                return
            self.obey(self.orders.pop(0))

    def obey(self, order: Order) -> None:
        """Carry out one order at once, and report the result to the controller.

        Raises:
            AssertionError: The order starts a replica of which another attempt still runs.
        """
        match order:
            case OpenStore():
                self.send(ev.StoreOpened(order.world, order.generation, 20_000 + order.generation))
            case StartReplica():
                key = (order.replica, order.attempt)
                other = [attempt for replica, attempt in self.alive if replica == order.replica]
                assert not other, f"{order.replica} starts while attempt {other[0]} runs"
                if (before := self.suspended.get(order.replica)) is not None and before.node == order.node:
                    del self.suspended[order.replica]
                self.alive[key] = order
                ports = tuple((port, 4000) for port in self.graph.role(order.replica.role).ports)
                self.send(ev.ReplicaStarted(*key, ports))
            case StopReplica():
                self._stop(order)
            case AskStep():
                self.send(ev.StepTold(order.replica, order.attempt, self.step_told(order)))
            case StopAtStep():
                self.send(ev.ReplicaLeftStep(order.replica, order.attempt))
            case _:
                pass

    def step_told(self, order: AskStep) -> int | None:
        """Return the step with which a replica answers; None: a worker of it never asks whether to stop."""
        return order.replica.index + 3

    def _stop(self, order: StopReplica) -> None:
        key = (order.replica, order.attempt)
        self.orders = [o for o in self.orders if not (isinstance(o, StartReplica) and (o.replica, o.attempt) == key)]
        start, waiting = self.alive.pop(key, None), self.suspended.get(order.replica)
        suspended = False
        if order.in_place and start is not None:
            self.suspended[order.replica], suspended = start, True
        elif waiting is not None and waiting.attempt == order.attempt:
            del self.suspended[order.replica]
        self.send(ev.ReplicaStopped(*key, suspended=suspended))

    def finish(self) -> list[Complaint]:
        """Play on without faults until the job ends or nothing more happens.

        Returns:
            A complaint if the job has not ended and names nothing that it waits for, or has not ended after
            `END_ROUNDS_MAX` events; else nothing.
        """
        job = self.controller.state
        for _ in range(END_ROUNDS_MAX):
            if job.outcome is not None:
                return []
            if job.suspected:
                self.send(ev.NodeHeard(next(iter(job.suspected))))
            elif self.orders:
                self.obey(self.orders.pop(0))
            elif not self._proceed():
                text = "the job has not ended and names nothing that it waits for"
                return [] if waiting_for(job) else [Complaint("liveness", text)]
        return [Complaint("liveness", f"the job has not ended after {END_ROUNDS_MAX} events")]

    def _proceed(self) -> bool:
        """Make one replica ready, else let one task succeed, else pass time to the next deadline.

        Returns:
            Whether one of these was possible.
        """
        job = self.controller.state
        for key, start in self.alive.items():
            if job.replicas[start.replica].phase == "running" and job.role_of(start.replica).spec.ready is not None:
                self.send(ev.ReplicaReady(*key))
                return True
        for key, start in list(self.alive.items()):
            if job.roles[start.replica.role].spec.kind == "task" and job.replicas[start.replica].is_up:
                self.fail(key, None)
                return True
        return self.pass_time()
