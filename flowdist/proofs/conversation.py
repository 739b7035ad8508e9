"""A conversation with the controller alone, in which anything may happen at any time.

News come late, twice, and of attempts that are over; orders are carried out late and in any order. Nobody lies about
what has ended. At the end the faults cease: what was ordered is done, time passes, tasks finish, and the job has ended
or waits for something that it names.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from hypothesis import strategies as st

from flowdist.control.controller import Controller
from flowdist.control.invariants.invariants import check_job
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
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import SECOND, FailureKind, RoleGraph
from flowdist.record.journal import Header, Line, Record, record
from flowdist.record.restart_rules import CRASHES, Complaint, complaints, crash
from flowdist.testing.strategies import FAILURES, NODES, topologies

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
NEWS_OF_REPLICAS = (
    *(ev.ReplicaStarted, ev.ReplicaReady, ev.ReplicaProgressed, ev.ReplicaExited, ev.ReplicaStopped),
    *(ev.CheckpointOffered, ev.StoreOpened, ev.StoreLost, ev.StepTold),
)
END_ROUNDS_MAX = 1500


class Move(NamedTuple):
    """One thing that happens. `which` and `how` choose among what there is, so that every move means something."""

    verb: Verb
    which: int = 0
    how: int = 0


class Talk(NamedTuple):
    """The case: a job, how many of its nodes are not there when it starts, and what then happens."""

    graph: RoleGraph
    late: int
    moves: tuple[Move, ...]


def talks() -> st.SearchStrategy[Talk]:
    # Hypothesis takes each strategy once, and there are ten of pairs: with one of single moves there is little else
    alone = [_moves(VERBS).map(lambda move: (move,)) for _ in range(2)]
    lists = st.lists(st.one_of(*alone, _pairs()), max_size=16)
    moves = lists.map(lambda parts: [move for part in parts for move in part])
    graphs = st.booleans().flatmap(lambda gpus: topologies(gpus=gpus))
    return st.builds(Talk, graphs, st.sampled_from([0, 1]), moves.map(tuple))


def _moves(verbs: tuple[Verb, ...]) -> st.SearchStrategy[Move]:
    return st.builds(Move, st.sampled_from(verbs), st.integers(0, 7), st.integers(0, 9))


def _pairs() -> st.SearchStrategy[tuple[Move, ...]]:
    """Something happens, and what matters is what comes right after it: above all when a world is closing (R17)."""
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


def judge_talk(talk: Talk) -> list[Complaint]:
    """What is wrong with how the controller went through it: invariants first, then the record, then the end."""
    player = Player(talk.graph)
    try:
        player.play(talk.moves, late=talk.late)
        found = player.come_to_an_end()
    except CRASHES as error:
        return [crash(error)]
    return complaints(player.lines) or found


class Player:
    """The nodes and what runs on them."""

    def __init__(self, graph: RoleGraph) -> None:
        self.graph, self.now = graph, 0
        self.controller = Controller(graph, NODES)
        self.lines: list[Line] = [Header(graph, NODES)]
        self.incarnations: dict[NodeName, int] = {}
        self.up: dict[NodeName, None] = {}
        self.orders: list[Order] = []  # not carried out yet
        self.alive: dict[tuple[ReplicaId, int], StartReplica] = {}
        self.suspended: dict[ReplicaId, StartReplica] = {}  # have left that attempt in place, and wait
        self.past: list[ev.Event] = []

    def play(self, moves: tuple[Move, ...], late: int = 0) -> None:
        for name in NODES[: len(NODES) - late]:
            self.join(name)
        if late:
            self.wait(max(role.join_window_ns for role in self.graph.roles) // SECOND)
        self.calm()
        for move in moves:
            self._make(move)

    def tell(self, event: ev.Event) -> None:
        effects = self.controller.handle(event, self.now)
        self.lines.append(record(len(self.lines), self.now, event, effects))
        self.past.append(event)
        self.orders += [effect for effect in effects if isinstance(effect, ORDERS) and effect.node in self.up]
        check_job(self.controller.state)

    def _make(self, move: Move) -> None:
        match move.verb:
            case "calm":
                self.calm()
            case "obey":
                if self.orders:
                    self.obey(self.orders.pop(move.which % len(self.orders)))
            case "join":
                self.join(NODES[move.which % 3])
            case "arrive":  # whoever is not there comes, and may be grown onto
                for name in [name for name in NODES if name not in self.up]:
                    self.join(name)
                self.calm()
                self.wait(31)
            case "lose":
                self._lose(NODES[move.which % 3], (ev.NodeGone, ev.NodeSilent, ev.NodeLeft)[move.how % 3])
            case "quiet":
                name = NODES[move.which % 3]
                if name in self.up:
                    self.tell(ev.NodeHeard(name) if move.how % 4 == 3 else ev.NodeSuspected(name))
            case "wait":
                self.wait(WAITS[move.which % len(WAITS)])
            case "scale":
                self.tell(ev.ScaleRequested(self.graph.roles[move.which % len(self.graph.roles)].name, move.how % 5))
            case "operate":
                what = (ev.DrainRequested, ev.CordonRequested, ev.UncordonRequested)[move.how % 3]
                self.tell(what(NODES[move.which % 3]))
            case "preempt":
                self.tell(ev.NodePreempted(NODES[move.which % 3], move.how % 2 * 30 * SECOND))
            case "gpu":
                bad = ev.GpuFailed(NODES[move.which % 3], move.how % 2, "Xid", 13 if move.how > 7 else 79)
                if bad.node in self.up:
                    self.tell(bad)
            case "restart":
                self.tell(ev.ControllerStarted(self.controller.state.epoch + 1))
            case "repeat":
                kinds = (ev.ReplicaExited, ev.ReplicaStopped) if move.how % 2 else NEWS_OF_REPLICAS
                if old := [event for event in self.past if isinstance(event, kinds)]:
                    self.tell(old[-1 - (move.which * 10 + move.how) % len(old)])
            case _:
                self._befall(move)

    def _befall(self, move: Move) -> None:
        """Something happens to one of those that run."""
        if not self.alive:
            return
        key = sorted(self.alive)[move.which % len(self.alive)]
        start, state = self.alive[key], self.controller.state
        match move.verb:
            case "exit":
                self._end(key, FAILURES[move.how % len(FAILURES)])
            case "finish":
                self._end(key, None)
            case "elastic":
                for other in [other for other in self.alive if self.alive[other].world == start.world]:
                    self.tell(ev.ReplicaElastic(*other))
            case "live":
                self.tell(ev.ReplicaReady(*key) if move.how % 2 else ev.ReplicaProgressed(*key, move.how))
            case "offer":
                self.tell(ev.CheckpointOffered(*key, start.generation - move.how % 2, f"step-{move.how}", move.how))
            case "stall":
                for other in self.alive:  # all wait for the one that hangs, at a step or two after its own
                    if self.alive[other].world == start.world:
                        self.tell(ev.ReplicaStalled(*other, "progress", SECOND, move.how + (other != key)))
            case "leave":
                if state.worlds[start.world].notice is not None:
                    del self.alive[key]
                    self.tell(ev.ReplicaStopped(*key))
            case "unkillable":
                if not self._stopping():
                    self._end(key, "exit")  # its mates are told to stop
                if stopping := self._stopping():
                    self._outlive(stopping[move.which % len(stopping)], is_back=move.how % 2 == 1)
            case _:
                raise AssertionError(f"nobody plays {move.verb}")

    def _outlive(self, key: tuple[ReplicaId, int], *, is_back: bool) -> None:
        """A worker outlives SIGKILL. With `is_back` its node is used again at once, all the same."""
        start = self.alive.pop(key)
        self.tell(ev.ReplicaUnkillable(*key))
        if is_back:
            self.join(start.node)

    def _stopping(self) -> list[tuple[ReplicaId, int]]:
        replicas = self.controller.state.replicas
        return [key for key in sorted(self.alive) if replicas[key[0]].phase == "stopping"]

    def _end(self, key: tuple[ReplicaId, int], kind: FailureKind | None) -> None:
        self.fail(key, kind, 1 if kind else 0)

    def fail(self, key: tuple[ReplicaId, int], kind: FailureKind | None, code: int, signal: str | None = None) -> None:
        """Of several workers that can stay, those that did not fail do."""
        start = self.alive.pop(key)
        self.orders = [o for o in self.orders if not (isinstance(o, StopReplica) and (o.replica, o.attempt) == key)]
        is_elastic = self.controller.state.replicas[start.replica].is_elastic
        suspended = is_elastic and kind is not None and self.controller.state.replicas[start.replica].procs > 1
        if suspended:
            self.suspended[start.replica] = start
        self.tell(ev.ReplicaExited(*key, kind, code, signal, suspended=suspended))

    def tell_gone(self, name: NodeName) -> None:
        self._lose(name, ev.NodeGone)

    def records(self) -> list[Record]:
        return [line for line in self.lines if isinstance(line, Record)]

    def join(self, name: NodeName) -> None:
        if name in self.up:
            self._forget(name)
        self.incarnations[name] = self.incarnations.get(name, 0) + 1
        self.up[name] = None
        spec = next(spec for spec in self.graph.cluster.nodes if spec.name == name)
        self.tell(ev.NodeJoined(name, spec, incarnation=self.incarnations[name]))

    def _lose(self, name: NodeName, how: type[ev.NodeGone] | type[ev.NodeSilent] | type[ev.NodeLeft]) -> None:
        if name in self.up:
            self._forget(name)
            del self.up[name]
            self.tell(how(name))

    def _forget(self, name: NodeName) -> None:
        """Nothing of the node runs any more, and what it was told is lost."""
        self.orders = [order for order in self.orders if order.node != name]
        self.alive = {key: start for key, start in self.alive.items() if start.node != name}
        self.suspended = {replica: start for replica, start in self.suspended.items() if start.node != name}

    def wait(self, seconds: int) -> None:
        """Deadlines on the way are kept, and what follows from them is not yet obeyed."""
        until = self.now + seconds * SECOND
        while (due := self.controller.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.tell(ev.TimePassed())
        self.now = until
        self.tell(ev.TimePassed())

    def calm(self) -> None:
        for _ in range(300):
            if not self.orders:
                return
            self.obey(self.orders.pop(0))

    def obey(self, order: Order) -> None:
        match order:
            case OpenStore():
                self.tell(ev.StoreOpened(order.world, order.generation, 20_000 + order.generation))
            case StartReplica():
                key = (order.replica, order.attempt)
                other = [attempt for replica, attempt in self.alive if replica == order.replica]
                assert not other, f"{order.replica} starts while attempt {other[0]} runs"
                if (before := self.suspended.get(order.replica)) is not None and before.node == order.node:
                    del self.suspended[order.replica]
                self.alive[key] = order
                ports = tuple((port, 4000) for port in self.graph.role(order.replica.role).ports)
                self.tell(ev.ReplicaStarted(*key, ports))
            case StopReplica():
                self._stop(order)
            case AskStep():
                self.tell(ev.StepTold(order.replica, order.attempt, order.replica.index + 3))
            case StopAtStep():
                self.tell(ev.ReplicaLeftStep(order.replica, order.attempt))
            case _:
                pass

    def _stop(self, order: StopReplica) -> None:
        key = (order.replica, order.attempt)
        starts = [o for o in self.orders if isinstance(o, StartReplica) and (o.replica, o.attempt) == key]
        self.orders = [o for o in self.orders if o not in starts]
        start, waiting = self.alive.pop(key, None), self.suspended.get(order.replica)
        suspended = order.in_place and start is not None
        if suspended and start is not None:
            self.suspended[order.replica] = start
        elif waiting is not None and waiting.attempt == order.attempt:
            del self.suspended[order.replica]
        self.tell(ev.ReplicaStopped(*key, suspended=suspended))

    def come_to_an_end(self) -> list[Complaint]:
        """Faults cease. Readiness first, then the end of a task, then the next deadline."""
        job = self.controller.state
        for _ in range(END_ROUNDS_MAX):
            if job.outcome is not None:
                return []
            if job.suspected:
                self.tell(ev.NodeHeard(next(iter(job.suspected))))
            elif self.orders:
                self.obey(self.orders.pop(0))
            elif not self._go_on():
                named = waiting_for(job)
                return [] if named else [Complaint("liveness", "the job neither ends nor waits for what it names")]
        return [Complaint("liveness", "the job goes on for ever")]

    def _go_on(self) -> bool:
        job = self.controller.state
        for key, start in self.alive.items():
            if job.replicas[start.replica].phase == "running" and job.role_of(start.replica).spec.ready is not None:
                self.tell(ev.ReplicaReady(*key))
                return True
        for key, start in list(self.alive.items()):
            if job.roles[start.replica.role].spec.kind == "task" and job.replicas[start.replica].is_up:
                self._end(key, None)
                return True
        deadline = self.controller.deadline()
        if deadline is None:
            return False
        self.now = max(self.now, deadline)
        self.tell(ev.TimePassed())
        return True
