"""Rehearsal of a job: the real controller, and agents that carry out each order at once; nothing is decided here.

It begins with all nodes joined and everything started, ready and progressed. `tell` hands over events with nothing
answered yet; `settle` carries orders out and lets deadlines pass until nothing restarts any more.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable

import msgspec

from flowdist.control.controller import Controller
from flowdist.control.job.state import JobState, Replica
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import AskStep, Decided, Effect, OpenStore, StartReplica, StopAtStep, StopReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import MINUTE, Cluster, NodeSpec, RoleGraph
from flowdist.graph.capacity import node_for_all

VAULT_PORT = 30_000
Running = dict[str, list[int]]  # by role: the indices of its replicas that run


class Rehearsal:
    """One job, from its start on. Every order is carried out in the order in which it was given."""

    def __init__(self, graph: RoleGraph) -> None:
        self.graph = graph if graph.cluster.given else with_room(graph, 1)
        nodes = self.graph.cluster.nodes
        self._controller = Controller(self.graph, tuple(node.name for node in nodes))
        self._now = 0
        self._pending: list[Effect] = []
        self._published: dict[str, int] = {}  # the latest version of each role that publishes some
        self.forget()
        self.tell(*(ev.NodeJoined(node.name, node, _address(node), vault_port=VAULT_PORT) for node in nodes))
        self.answer()
        self._save()
        self._now += MINUTE

    @property
    def job(self) -> JobState:
        """Return the state of the controller."""
        return self._controller.state

    def copy(self) -> Rehearsal:
        """Return an independent copy: what happens to one does not happen to the other."""
        copied: Rehearsal = pickle.loads(pickle.dumps(self))  # in a third of the time of deepcopy
        return copied

    def forget(self) -> None:
        """Forget the orders so far."""
        self.stops: list[StopReplica] = []
        self.waves: list[list[StartReplica]] = []  # the replicas of one wave start at the same time
        self.refusals: list[str] = []  # requests of the operator that were refused, each in words

    def rejoin(self, *nodes: NodeName) -> None:
        """Have these nodes come back, without what they ran."""
        specs = [node for node in self.graph.cluster.nodes if node.name in nodes]
        self.tell(*(ev.NodeJoined(node.name, node, _address(node), 2, vault_port=VAULT_PORT) for node in specs))

    def running(self) -> Running:
        """Return the replicas that run, and have no order to stop, by role. Roles of which none runs are left out."""
        return by_role(replica for replica in self.job.replicas.values() if replica.is_up)

    def seats(self) -> dict[str, NodeName]:
        """Return the node of each replica that has one, by the name of the replica."""
        return {str(replica.id): replica.node for replica in self.job.replicas.values() if replica.node is not None}

    def tell(self, *events: ev.Event) -> None:
        """Hand these events to the controller, all at this moment. What it orders is not carried out yet."""
        for event in events:
            effects = self._controller.handle(event, self._now)
            self.refusals += [each.text for each in effects if isinstance(each, Decided) and each.level == "refused"]
            self._pending += effects

    def miss_readiness(self, replica: ReplicaId, why: str) -> None:
        """Have the replica fail as not ready in time: no event reports that, the controller notes it at a deadline."""
        self.job.note_failure(self.job.replicas[replica], "unready", why)
        self.tell(ev.TimePassed())

    def answer(self) -> None:
        """Carry out what is ordered, and what is ordered because of that, until nothing is left to do."""
        while self._pending:
            orders, self._pending = self._pending, []
            starts: list[StartReplica] = []
            while orders:  # a store opens at once, so that a gang starts in the same wave as other replicas
                effect = orders.pop(0)
                if isinstance(effect, StopReplica):
                    self._stop(effect)
                elif isinstance(effect, OpenStore):
                    orders += self._controller.handle(ev.StoreOpened(effect.world, effect.generation, 1), self._now)
                elif isinstance(effect, StartReplica):
                    starts += [effect] if self._is_current(effect) else []  # its node may be lost since
                else:
                    self.tell(*self._answers(effect))
            if starts:
                self.waves.append(starts)
                self._start(starts)

    def settle(self) -> None:
        """Carry out what is ordered, and let deadlines pass until no incident is open, or all that are wait for room.

        The deadline for room is not passed: whether nodes come in time is not known.
        """
        self.answer()
        while self.job.open or any(due.what in ("hang", "drain") for due in self.job.due):
            at_ns = self._controller.deadline()
            if at_ns is None or any(due.what == "pending" and self.job.due.at(due) == at_ns for due in self.job.due):
                return
            self._now = max(self._now, at_ns)
            self.tell(ev.TimePassed())
            self.answer()

    def succeed(self, roles: Collection[str]) -> None:
        """Let the tasks of these roles succeed, upstream first."""
        for role in sorted((self.job.roles[name] for name in roles), key=lambda role: role.depth):
            replicas = [replica for replica in self.job.replicas_of(role) if replica.is_up]
            self.tell(*(ev.ReplicaExited(replica.id, replica.attempt) for replica in replicas))
            self.answer()

    def _save(self) -> None:
        """Report that each world with snapshots has one, of which every shard has all of its copies."""
        for world in self.job.worlds.values():
            for member in self.job.members_of(world) if world.buddies else ():
                assert member.order is not None and member.node is not None
                order, buddies = member.order, world.buddies[member.node].buddies
                for rank in range(order.rank, order.rank + member.procs):
                    key = (world.name, world.generation, 1, rank)
                    for holder in (member.node, *(name for name, _ in buddies)):
                        self.tell(ev.CopyHeld(*key, holder, order.world_size, 0, ""))

    def _stop(self, order: StopReplica) -> None:
        """Report that the replica has stopped; an attempt that has ended by itself meanwhile needs no stop."""
        if self._is_current(order):
            self.stops.append(order)
            self.tell(ev.ReplicaStopped(order.replica, order.attempt, suspended=order.in_place))

    def _is_current(self, order: StartReplica | StopReplica) -> bool:
        """Return whether the order is about the present attempt of its replica, and that has not ended."""
        replica = self.job.replicas[order.replica]
        return replica.attempt == order.attempt and replica.is_live

    def _answers(self, order: Effect) -> list[ev.Event]:
        """Return what an agent reports that carries out the order. Workers of tasks ask should_stop(step)."""
        match order:
            case AskStep():
                is_task = self.graph.role(order.replica.role).kind == "task"
                return [ev.StepTold(order.replica, order.attempt, 1 if is_task else None)]
            case StopAtStep(step=int()):
                return [ev.ReplicaLeftStep(order.replica, order.attempt)]
            case _:
                return []

    def _start(self, starts: Iterable[StartReplica]) -> None:
        """Report that these replicas run and are ready, and that tasks have made a step."""
        for start in starts:
            spec, key = self.graph.role(start.replica.role), (start.replica, start.attempt)
            ports = tuple((port, 20000 + start.replica.index) for port in spec.ports)
            self.tell(ev.ReplicaStarted(*key, ports), ev.ReplicaReady(*key))
            if spec.kind == "task":
                self.tell(ev.ReplicaProgressed(*key, 1))
            if self.graph.holders_of(spec.name):
                self._published[spec.name] = self._published.get(spec.name, 0) + 1
                self.tell(ev.ReplicaPublished(*key, self._published[spec.name]))
        for replica in self.job.replicas.values() if self._published else ():
            edge = self.graph.role(replica.id.role).versions if replica.phase == "running" else None
            if edge is not None and edge.role in self._published:
                self.tell(ev.ReplicaAcknowledged(replica.id, replica.attempt, self._published[edge.role]))


def _address(node: NodeSpec) -> str:
    """Return a made-up address: that of a service changes if it moves to another node."""
    return f"address of {node.name}"


def by_role(replicas: Iterable[Replica]) -> Running:
    """Return the indices of these replicas, by role."""
    found: Running = {}
    for replica in replicas:
        found.setdefault(replica.id.role, []).append(replica.id.index)
    return found


def names_of(role: str, indices: Iterable[int]) -> str:
    """Return the names of replicas of a role: `ps/0, ps/1`."""
    return ", ".join(f"{role}/{index}" for index in indices)


def with_room(graph: RoleGraph, count: int) -> RoleGraph:
    """Return the graph on made-up nodes, each large enough for all of it and with every label that a role wants."""
    node = node_for_all(graph.roles)
    labels = tuple(dict.fromkeys(label for role in graph.roles for label in role.placement.where))
    nodes = (msgspec.structs.replace(node, name=f"node{i}", labels=labels) for i in range(count))
    return msgspec.structs.replace(graph, cluster=Cluster(tuple(nodes)))
