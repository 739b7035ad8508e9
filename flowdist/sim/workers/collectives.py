"""What becomes of the peers of a worker that dies, hangs or is cut off: they are in a collective that never ends.

Where the workload of a role says so (`collective`), since what is true depends on the backend:

    fail    as with gloo: who is connected with a worker that is gone gets an error, some milliseconds later, and exits
            with code 1; often before anybody has proved the death of the other one's node
    hang    as with NCCL: nobody notices. They do nothing more and hear no SIGTERM, since a handler of theirs runs when
            the collective returns; SIGKILL ends them, or the timeout of the process group, with SIGABRT

A worker that hangs, stands still or is cut off makes its peers hang either way. Workers inside `worker.elastic()` hold
an error back for a while, to be told to leave, and are freed when they are. `wait`, and nothing said: they stand still
and do as they are told. Agents and controller are told nothing of it: processes exit, or do not, and that is all.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import MINUTE, MS, SECOND, RoleGraph, RoleSpec
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import SimNode
from flowdist.sim.engine.streams import draw
from flowdist.sim.user_code.workload import WorldModel
from flowdist.sim.workers.partitions import Partitions
from flowdist.sim.workers.worlds import Worlds

NOTICES_NS = 5 * MS  # nominal, from the death of a worker to the exit of a peer
NOTICES_NS_MIN, DOUBLINGS = 1 * MS, 10  # of other seeds: up to so many times the double, each as likely as the last
TIMEOUTS_NS = {"fail": 30 * MINUTE, "hang": 10 * MINUTE}  # of a process group of torch
HELD_BACK_NS = 30 * SECOND  # what `worker.elastic()` waits with a broken collective for being told to leave


def with_collective(graph: RoleGraph, collective: str) -> RoleGraph:
    """The graph in which the tasks that do not say what becomes of the peers of a dead worker say this."""
    roles = [_saying(role, collective) if says_nothing(role) else role for role in graph.roles]
    return msgspec.structs.replace(graph, roles=tuple(roles)) if collective else graph


def says_nothing(role: RoleSpec) -> bool:
    return role.kind == "task" and not role.workload.collective


def _saying(role: RoleSpec, collective: str) -> RoleSpec:
    return msgspec.structs.replace(role, workload=msgspec.structs.replace(role.workload, collective=collective))


class Blocked(NamedTuple):
    """A generation whose members have been in one collective since then."""

    generation: int
    since_ns: int


class Collectives:
    """The collectives of all worlds.

    Args:
        ctx: The simulation.
        nodes: The nodes by name; their workers fail.
        worlds: The worlds, whose members wait.
        partitions: The partitions that keep members apart.
    """

    def __init__(self, ctx: Context, nodes: dict[NodeName, SimNode], worlds: Worlds, partitions: Partitions) -> None:
        self._ctx, self._nodes, self._worlds, self._partitions = ctx, nodes, worlds, partitions
        self._broken: dict[str, int] = {}  # generations of worlds that wait for a member in vain
        self._blocked: dict[str, Blocked] = {}

    def lose(self, replica: ReplicaId, attempt: int) -> None:
        """Workers of that attempt are gone, and those of its world are not at their end: who works on, notices.

        Those that wait for a service, or for the others to start up, are in no collective.
        """
        model = self._worlds.model_of(replica, attempt)
        if (
            model is None
            or model.begun_ns is None
            or model.left_ns is not None
            or self._partitions.waits_for_service(model)
        ):
            return
        if model.step_at(self._ctx.queue.now) >= model.pace.workload.steps:
            return
        for start in model.members.values():
            load = self._ctx.graph.role(start.replica.role).workload
            if load.collective == "fail":
                held_back = HELD_BACK_NS if load.rejoin_ns is not None else 0
                self._fail_soon(start, held_back, f"its process group has lost {replica}")
            elif load.collective == "hang":
                self._broken[start.world] = start.generation
                self.update(start.world)

    def hang(self, replica: ReplicaId, attempt: int) -> None:
        """That one is there, and does not answer: its peers wait for it for good."""
        model = self._worlds.model_of(replica, attempt)
        if model is not None and model.begun_ns is not None:
            world = model.members[replica].world
            self._broken[world] = model.generation
            self.update(world)

    def update(self, world: str) -> None:
        """Whether its members get on may have changed: from when on does their collective last?"""
        model = self._worlds.models.get(world)
        if model is None or not self._is_blocked(world, model):
            self._blocked.pop(world, None)
            return
        known = self._blocked.get(world)
        if known is not None and known.generation == model.generation:
            return
        blocked = self._blocked[world] = Blocked(model.generation, self._ctx.queue.now)
        members = (self._ctx.graph.role(start.replica.role) for start in model.members.values())
        for timeout_ns in dict.fromkeys(_timeout_ns(role) for role in members if _plays(role)):
            self._ctx.queue.after(timeout_ns, self._time_out, world, blocked, timeout_ns)

    def is_deaf(self, replica: ReplicaId, attempt: int) -> bool:
        """Its workers are in a collective that does not end, and run no handler of a signal."""
        if not _plays(self._ctx.graph.role(replica.role)):
            return False
        model = self._worlds.model_of(replica, attempt)
        return model is not None and self._is_blocked(model.members[replica].world, model)

    def _is_blocked(self, world: str, model: WorldModel) -> bool:
        if self._broken.get(world) == model.generation:
            return True
        return model.begun_ns is not None and (bool(model.holds) or self._partitions.splits(model))

    def _time_out(self, world: str, blocked: Blocked, timeout_ns: int) -> None:
        """The process group of those who still wait gives up."""
        if self._blocked.get(world) != blocked or self._worlds.models[world].generation != blocked.generation:
            return
        for start in self._worlds.models[world].members.values():
            role = self._ctx.graph.role(start.replica.role)
            if _plays(role) and _timeout_ns(role) == timeout_ns:
                self._fail_soon(start, 0, "a collective has timed out", aborts=role.workload.collective == "hang")

    def _fail_soon(self, start: StartReplica, delay_ns: int, why: str, *, aborts: bool = False) -> None:
        """Each of its workers by itself, when it gets there."""
        for rank in range(self._ctx.graph.role(start.replica.role).procs):
            delay = delay_ns + self._notices_after(start, rank)
            self._ctx.queue.after(delay, self._fail, start, rank, why, aborts)

    def _notices_after(self, start: StartReplica, rank: int) -> int:
        if not self._ctx.seed:
            return NOTICES_NS
        drawn = DOUBLINGS * draw(self._ctx.seed, f"{start.replica}#{start.attempt}", "notices", rank)
        return round((NOTICES_NS_MIN << int(drawn)) * (1 + drawn - int(drawn)))

    def _fail(self, start: StartReplica, rank: int, why: str, aborts: bool) -> None:
        node, key = self._nodes[start.node], (start.replica, start.attempt)
        if key in node.suspended or key in node.hung:  # it has left in time, or does not move at all
            return
        if aborts:
            node.exit_worker(*key, rank, signal="ABRT", detail=why)
        else:
            node.exit_worker(*key, rank, code=1, detail=why)


def _plays(role: RoleSpec) -> bool:
    return role.workload.collective in TIMEOUTS_NS


def _timeout_ns(role: RoleSpec) -> int:
    given = role.workload.collective_timeout_ns
    return TIMEOUTS_NS[role.workload.collective] if given is None else given
