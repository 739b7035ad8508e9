"""Collectives: what happens to the peers of a worker that dies, hangs or is cut off.

They are inside a collective operation that never completes. What follows depends on the backend, so the workload of a
role says it (`collective`):

    fail    As with gloo: a peer gets an error some milliseconds later and exits with code 1, often before the death of
            the first worker's node is proven.
    hang    As with NCCL: no peer notices. They run no signal handler, since a handler runs when the collective returns.
            SIGKILL ends them, or the timeout of the process group, with SIGABRT.
    wait    The peers wait, and obey signals; so do those of a role that says nothing.

A worker that hangs, is paused or is cut off makes its peers hang with either backend. Workers inside `worker.elastic()`
hold an error back for a while, to be told to leave their generation, and are freed when they are told.

Agents and controller learn nothing of this but that processes exit, or do not.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.faults.streams import draw
from flowdist.graph import MINUTE, MS, SECOND, RoleGraph, RoleSpec
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import SimNode
from flowdist.sim.user_code.workload import WorldModel
from flowdist.sim.workers.partitions import Partitions
from flowdist.sim.workers.worlds import Worlds

NOTICES_NS = 5 * MS  # nominal, from the death of a worker to the exit of a peer
NOTICES_NS_MIN, DOUBLINGS = 1 * MS, 10  # other seeds: 1 ms to about 1 s, evenly on a logarithmic scale
TIMEOUTS_NS = {"fail": 30 * MINUTE, "hang": 10 * MINUTE}  # the defaults of torch for gloo and NCCL
HELD_BACK_NS = 30 * SECOND  # how long `worker.elastic()` waits with an error for the order to leave


def with_collective(graph: RoleGraph, collective: str) -> RoleGraph:
    """Return the graph with this `collective` for the tasks whose workload says nothing about it."""
    roles = [_saying(role, collective) if says_nothing(role) else role for role in graph.roles]
    return msgspec.structs.replace(graph, roles=tuple(roles)) if collective else graph


def says_nothing(role: RoleSpec) -> bool:
    """Return whether the role is a task whose workload does not say what happens to the peers of a dead worker."""
    return role.kind == "task" and not role.workload.collective


def _saying(role: RoleSpec, collective: str) -> RoleSpec:
    return msgspec.structs.replace(role, workload=msgspec.structs.replace(role.workload, collective=collective))


class Blocked(NamedTuple):
    """A generation whose members have been inside one collective since a time."""

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
        self._broken: dict[str, int] = {}  # generations that wait for a member in vain, by world
        self._blocked: dict[str, Blocked] = {}

    def lose(self, replica: ReplicaId, attempt: int) -> None:
        """Let the peers of workers that have ended notice it, or not, as their workload says.

        Peers that wait for a service, or for others to start up, are inside no collective; nor are those that are done.
        """
        model = self._worlds.model_of(replica, attempt)
        if model is None or model.begun_ns is None or model.left_ns is not None:
            return
        is_done = model.step_at(self._ctx.queue.now) >= model.pace.workload.steps
        if is_done or self._partitions.waits_for_service(model):
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
        """Let the peers of a worker that hangs wait for ever."""
        model = self._worlds.model_of(replica, attempt)
        if model is not None and model.begun_ns is not None:
            world = model.members[replica].world
            self._broken[world] = model.generation
            self.update(world)

    def update(self, world: str) -> None:
        """Start the timeout of a world that has become blocked, or drop that of one that is not any more."""
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
        """Return whether the workers run no signal handler, because they are inside a collective that never ends."""
        if not _plays(self._ctx.graph.role(replica.role)):
            return False
        model = self._worlds.model_of(replica, attempt)
        return model is not None and self._is_blocked(model.members[replica].world, model)

    def _is_blocked(self, world: str, model: WorldModel) -> bool:
        if self._broken.get(world) == model.generation:
            return True
        return model.begun_ns is not None and (bool(model.holds) or self._partitions.splits(model))

    def _time_out(self, world: str, blocked: Blocked, timeout_ns: int) -> None:
        """Let the process groups give up whose members are still blocked."""
        if self._blocked.get(world) != blocked or self._worlds.models[world].generation != blocked.generation:
            return
        for start in self._worlds.models[world].members.values():
            role = self._ctx.graph.role(start.replica.role)
            if _plays(role) and _timeout_ns(role) == timeout_ns:
                signal = "ABRT" if role.workload.collective == "hang" else None
                self._fail_soon(start, 0, "a collective has timed out", signal)

    def _fail_soon(self, start: StartReplica, delay_ns: int, why: str, signal: str | None = None) -> None:
        """Let each worker of a member end by itself some milliseconds after the delay: by a signal, or with code 1."""
        for rank in range(self._ctx.graph.role(start.replica.role).procs):
            delay = delay_ns + self._notices_after(start, rank)
            self._ctx.queue.after(delay, self._fail, start, rank, why, signal)

    def _notices_after(self, start: StartReplica, rank: int) -> int:
        if not self._ctx.seed:
            return NOTICES_NS
        drawn = DOUBLINGS * draw(self._ctx.seed, f"{start.replica}#{start.attempt}", "notices", rank)
        return round((NOTICES_NS_MIN << int(drawn)) * (1 + drawn - int(drawn)))

    def _fail(self, start: StartReplica, rank: int, why: str, signal: str | None) -> None:
        node, key = self._nodes[start.node], (start.replica, start.attempt)
        if key not in node.suspended and key not in node.hung:  # else it has left in time, or is stopped
            node.exit_worker(*key, rank, code=0 if signal else 1, signal=signal, detail=why)


def _plays(role: RoleSpec) -> bool:
    return role.workload.collective in TIMEOUTS_NS


def _timeout_ns(role: RoleSpec) -> int:
    given = role.workload.collective_timeout_ns
    return TIMEOUTS_NS[role.workload.collective] if given is None else given
