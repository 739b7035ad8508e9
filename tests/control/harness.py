"""A few words for conversations with the controller: graphs, nodes, and an agent that answers at once."""

from __future__ import annotations

import copy
import pickle

from flowdist.control.controller import Controller, settle
from flowdist.control.invariants import check_job
from flowdist.control.membership.waiting import waiting_for
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Decided, Effect, FinishJob, OpenStore, StartReplica, StopReplica
from flowdist.control.protocol.ids import replica_of
from flowdist.control.recording import record
from flowdist.graph import (
    SECOND,
    Cluster,
    Domain,
    Gate,
    JobOptions,
    NodeSpec,
    Readiness,
    Resources,
    RestartPolicy,
    RoleGraph,
    RoleSpec,
)

CPU1 = Resources(cpu=1.0)
r = replica_of


def role(name: str, **fields: object) -> RoleSpec:
    """A role with sensible fields: services and `Restart("replica")` have no gang, as in the DSL."""
    restart = fields.get("restart")
    loose = fields.get("kind") == "service" or (isinstance(restart, RestartPolicy) and restart.scope == "replica")
    fields.setdefault("gang", not loose)
    return RoleSpec(name=name, command=("true",), resources=CPU1, **fields)  # type: ignore[arg-type]


def trainers(low: int = 2, high: int = 2, **fields: object) -> RoleSpec:
    return role("trainer", min_replicas=low, max_replicas=high, **fields)


def graph(
    *roles: RoleSpec, domains: tuple[Domain, ...] = (), nodes: int = 1, cpu: float = 8.0, **options: int
) -> RoleGraph:
    cluster = Cluster(tuple(node(f"node{i}", cpu) for i in range(nodes)))
    return RoleGraph("test", roles, domains, cluster, JobOptions(**options))


def node(name: str, cpu: float = 8.0, gpu: int = 0) -> NodeSpec:
    return NodeSpec(name, cpu=cpu, gpu=gpu)


def assert_settled(controller: Controller) -> None:
    """Settling visits what an event touched: visiting everything once more must find nothing to do."""
    job = pickle.loads(pickle.dumps(controller.state))  # a copy, in a third of the time of deepcopy
    job.effects = []
    for world in job.worlds.values():
        job.touch(world)
    job.placement_changed = True
    if job.outcome is None:
        settle(job)
    assert not job.effects, f"left undone: {job.effects}"
    check_job(job)


def assert_records_only(controller: Controller, event: ev.Event, now: int) -> None:
    """Recording an event writes facts: nothing is ordered or said, and no incident opens or closes. In a copy."""
    copied: Controller = pickle.loads(pickle.dumps(controller))
    copied.handle(ev.TimePassed(), now)  # deadlines that are due come before the event
    job = copied.state
    if job.outcome is None:
        job.effects, before = [], copy.deepcopy((job.incidents, job.open, job.ending))
        record(job, event)
        assert job.effects == [], f"{event} leads to {job.effects} before it is judged"
        assert (job.incidents, job.open, job.ending) == before, f"{event} is judged when it is recorded"


class Talk:
    """A conversation. Every event is checked against the invariants; with `auto`, agents answer at once.

    `auto` opens stores, starts and readies replicas and stops them as ordered, in the order of the orders.
    """

    def __init__(self, graph: RoleGraph, *, auto: bool = True, known: int | None = None) -> None:
        names = [spec.name for spec in graph.cluster.nodes]
        self.controller = Controller(graph, tuple(names[:known]))
        self.graph, self.auto, self.now = graph, auto, 0
        self.effects: list[Effect] = []
        self.starts: list[StartReplica] = []
        self.record: list[tuple[ev.Event, int]] = []
        self.incarnations: dict[str, int] = {}

    @property
    def job(self):  # type: ignore[no-untyped-def]
        return self.controller.state

    def tell(self, event: ev.Event) -> list[Effect]:
        """One event, and with `auto` all the answers to what follows. Returns the effects of the event alone."""
        self.record.append((event, self.now))
        first = effects = self.controller.handle(event, self.now)
        queue = list(effects)
        self._keep(effects)
        check_job(self.job)
        assert_settled(self.controller)
        while self.auto and queue:
            for answer in self._answers(queue.pop(0)):
                self.record.append((answer, self.now))
                effects = self.controller.handle(answer, self.now)
                self._keep(effects)
                check_job(self.job)
                queue += effects
        return first

    def _keep(self, effects: list[Effect]) -> None:
        self.effects += effects
        self.starts += [effect for effect in effects if isinstance(effect, StartReplica)]

    def _answers(self, effect: Effect) -> list[ev.Event]:
        match effect:
            case OpenStore():
                return [ev.StoreOpened(effect.world, effect.generation, 29500)]
            case StartReplica():
                spec = self.graph.role(effect.replica.role)
                ports = tuple((port, 4000 + effect.replica.index) for port in spec.ports)
                ready = [ev.ReplicaReady(effect.replica, effect.attempt)] if spec.ready else []
                return [ev.ReplicaStarted(effect.replica, effect.attempt, ports), *ready]
            case StopReplica():
                return [ev.ReplicaStopped(effect.replica, effect.attempt, suspended=effect.in_place)]
            case _:
                return []

    def join(self, *names: str, cpu: float | None = None) -> None:
        for name in names:
            specs = [spec for spec in self.graph.cluster.nodes if spec.name == name] or [node(name)]
            spec = specs[0] if cpu is None else node(name, cpu)
            self.incarnations[name] = self.incarnations.get(name, 0) + 1
            self.tell(ev.NodeJoined(name, spec, incarnation=self.incarnations[name]))

    def report(self, kind: type[ev.AttemptEvent], name: str, *more: object, **fields: object) -> list[Effect]:
        """An agent reports something of the present attempt of a replica."""
        return self.tell(kind(r(name), self.replica(name).attempt, *more, **fields))  # type: ignore[arg-type]

    def gone(self, name: str) -> list[Effect]:
        return self.tell(ev.NodeGone(name))

    def fail(self, name: str, code: int = 1, attempt: int | None = None) -> list[Effect]:
        return self.tell(ev.ReplicaExited(r(name), attempt or self.replica(name).attempt, "exit", code))

    def time_out(self, name: str) -> list[Effect]:
        """The process group of a replica gives up a collective, and SIGABRT ends the replica, as with NCCL."""
        key = r(name), self.replica(name).attempt
        return self.tell(ev.ReplicaExited(*key, "signal", signal="ABRT", detail="too late", cause="collective_timeout"))

    def elastic(self, *names: str) -> None:
        """All workers of these replicas are in elastic code."""
        for name in names:
            self.report(ev.ReplicaElastic, name)

    def stops(self, effects: list[Effect] | None = None) -> dict[str, bool]:
        """Who is told to stop, and whether in place."""
        found = self.effects if effects is None else effects
        return {str(e.replica): e.in_place for e in found if isinstance(e, StopReplica)}

    def suspended(self) -> list[str]:
        return [str(replica) for replica in self.job.suspended]

    def finish(self, *names: str) -> None:
        for name in names:
            self.report(ev.ReplicaExited, name)

    def answer(self) -> None:
        """Every agent does what it was ordered to do; from now on, agents answer at once."""
        self.auto = True
        for replica in list(self.job.replicas.values()):
            if replica.phase == "stopping":
                self.tell(ev.ReplicaStopped(replica.id, replica.attempt))
        for world in list(self.job.worlds.values()):
            if world.phase == "opening":
                self.tell(ev.StoreOpened(world.name, world.generation, 1))

    def charges(self, name: str) -> list[float]:
        """When the incidents opened that the role has paid for, in seconds."""
        return [charge.opened_ns / SECOND for charge in self.job.roles[name].charges]

    def charges_in_the_end(self, name: str) -> list[float]:
        """The same, once all agents have answered. They answer in a copy of this conversation."""
        future = copy.deepcopy(self)
        future.answer()
        return future.charges(name)

    def suspects(self) -> list[str]:
        """The nodes that have to be heard, or lost, before failures are judged, as `status` names them."""
        lines = [line for line in waiting_for(self.job) if " to be heard, or lost: " in line]
        return [name for line in lines for name in line.partition(" to be heard")[0].split(", ")]

    def wait(self, seconds: float) -> list[Effect]:
        """Time passes; every deadline on the way is kept."""
        until = self.now + round(seconds * SECOND)
        effects: list[Effect] = []
        while (due := self.controller.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            effects += self.tell(ev.TimePassed())
        self.now = until
        return effects + self.tell(ev.TimePassed())

    def replica(self, name: str):  # type: ignore[no-untyped-def]
        return self.job.replicas[r(name)]

    def world(self, name: str):  # type: ignore[no-untyped-def]
        return self.job.worlds[name]

    def attempts(self) -> dict[str, int]:
        return {str(replica.id): replica.attempt for replica in self.job.replicas.values()}

    def up(self) -> list[str]:
        return [str(replica.id) for replica in self.job.replicas.values() if replica.is_up]

    def texts(self) -> list[str]:
        return [effect.text for effect in self.effects if isinstance(effect, Decided)]

    def outcome(self) -> tuple[str | None, str]:
        for effect in self.effects:
            if isinstance(effect, FinishJob):
                return effect.outcome, effect.reason
        return None, ""


def joined(*roles: RoleSpec, auto: bool = True, **fields: object) -> Talk:
    """A conversation about these roles in which every node has joined."""
    talk = Talk(graph(*roles, **fields), auto=auto)  # type: ignore[arg-type]
    talk.join(*(spec.name for spec in talk.graph.cluster.nodes))
    return talk


def restart(scope: str = "role", times: int = 3, **fields: object) -> RestartPolicy:
    return RestartPolicy(scope=scope, max_restarts=times, **fields)  # type: ignore[arg-type]


TCP = Readiness("tcp", "rpc")
__all__ = ["CPU1", "TCP", "Cluster", "Domain", "Gate", "Talk", "graph", "node", "r", "restart", "role", "trainers"]
