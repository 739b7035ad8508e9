"""Collectives: what happens to the peers of a worker that dies, hangs or is cut off.

The peers are inside a collective operation that never completes. What follows depends on the backend, so the workload
of a role says it (`collective`):

    fail    As with gloo: a peer gets an error some milliseconds later and exits with code 1, often before the death of
            the first worker's node is proven.
    hang    As with NCCL: no peer notices. They run no signal handler, since a handler runs when the collective returns.
            SIGKILL ends them, or the timeout of the process group, with SIGABRT.
    wait    The peers wait, and obey signals. So do the peers in a role whose workload does not say.

A worker that hangs, is paused or is cut off makes its peers hang with either backend. A worker inside
`worker.elastic()` holds an error back for up to 30 s. If the order to leave its generation comes within that time the
worker is suspended, and does not exit.

All that agents and controller notice is that processes exit, or do not.
"""

from __future__ import annotations

from typing import NamedTuple

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ExitCause, NodeName, ReplicaId
from flowdist.faults.streams import draw
from flowdist.graph import MS, SECOND, RoleGraph, RoleSpec
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import NOTICES_NS, SimNode
from flowdist.sim.user_code.workload import WorldModel, with_workloads
from flowdist.sim.workers.worlds import Partitions, Worlds

NOTICES_NS_MIN, DOUBLINGS = 1 * MS, 10  # other seeds: 1 ms to about 1 s, evenly on a logarithmic scale
TIMED_OUT = "a collective has timed out"  # detail of the exit of a worker whose process group gave up
HELD_BACK_NS = 30 * SECOND  # how long `worker.elastic()` waits with an error for the order to leave


def with_collective(graph: RoleGraph, collective: str) -> RoleGraph:
    """Return the graph, in which tasks whose workload has no `collective` have this one, if it is not empty."""
    said = {"collective": collective}
    return with_workloads(graph, lambda role: said if says_nothing(role) else {}) if collective else graph


def says_nothing(role: RoleSpec) -> bool:
    """Return whether the role is a task whose workload does not say what happens to the peers of a dead worker."""
    return role.kind == "task" and not role.workload.collective


class Blocked(NamedTuple):
    """State of a world whose members wait inside a collective that does not complete: which generation, since when."""

    generation: int
    since_ns: int


class Collectives:
    """The collective operations of all worlds of tasks: which worlds are blocked in one, and which peers fail."""

    def __init__(self, ctx: Context, nodes: dict[NodeName, SimNode], worlds: Worlds, partitions: Partitions) -> None:
        self._ctx, self._nodes, self._worlds, self._partitions = ctx, nodes, worlds, partitions
        self._broken: dict[str, int] = {}  # generations that wait for a member in vain, by world
        self._blocked: dict[str, Blocked] = {}  # by world; only its present entry can time out

    def lose(self, replica: ReplicaId, attempt: int) -> None:
        """Let the peers of an attempt react to the end of its workers, as the `collective` of each peer's role says.

        With "fail" a peer exits some milliseconds later. With "hang" the world is blocked until its timeout. Nothing
        happens in a world whose members are inside no collective: it waits for a service, waits for members to start
        up, has stopped at an agreed step, or has done all its steps.
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
        """Block the world of an attempt that hangs, if it steps, until the timeout of its process groups."""
        model = self._worlds.model_of(replica, attempt)
        if model is not None and model.begun_ns is not None:
            world = model.members[replica].world
            self._broken[world] = model.generation
            self.update(world)

    def update(self, world: str) -> None:
        """Start the timeout of a world that has become blocked, or drop it if the world is not blocked any more."""
        model = self._worlds.models.get(world)
        if model is None or not self._is_blocked(world, model):
            self._blocked.pop(world, None)
            return
        known = self._blocked.get(world)
        if known is not None and known.generation == model.generation:
            return
        blocked = self._blocked[world] = Blocked(model.generation, self._ctx.queue.now)
        members = (self._ctx.graph.role(start.replica.role).workload for start in model.members.values())
        for timeout_ns in dict.fromkeys(load.group_timeout_ns for load in members):
            if timeout_ns is not None:
                self._ctx.queue.after(timeout_ns, self._time_out, world, blocked, timeout_ns)

    def is_deaf(self, replica: ReplicaId, attempt: int) -> bool:
        """Return whether only SIGKILL ends the workers of an attempt: they are inside a blocked collective."""
        if self._ctx.graph.role(replica.role).workload.group_timeout_ns is None:
            return False
        model = self._worlds.model_of(replica, attempt)
        return model is not None and self._is_blocked(model.members[replica].world, model)

    def _is_blocked(self, world: str, model: WorldModel) -> bool:
        if self._broken.get(world) == model.generation:
            return True
        return model.begun_ns is not None and (bool(model.holds) or self._partitions.splits(model))

    def _time_out(self, world: str, blocked: Blocked, timeout_ns: int) -> None:
        """End the members with this timeout, by SIGABRT or code 1, if their world has been blocked since `blocked`."""
        if self._blocked.get(world) != blocked or self._worlds.models[world].generation != blocked.generation:
            return
        self._report_steps(self._worlds.models[world])
        for start in self._worlds.models[world].members.values():
            load = self._ctx.graph.role(start.replica.role).workload
            if load.group_timeout_ns == timeout_ns:
                signal = "ABRT" if load.collective == "hang" else None
                self._fail_soon(start, 0, TIMED_OUT, signal)

    def _report_steps(self, model: WorldModel) -> None:
        """Tell the agents of all members the present step, since the controller compares them (R15).

        One of them may have reported for all until now. A world that a hang has halted has reported them when it was
        halted.
        """
        if model.begun_ns is None:
            return
        step = model.step_at(self._ctx.queue.now)
        for start in model.members.values():
            self._nodes[start.node].tell_of_workers(io.WorkerProgressed, start.replica, start.attempt, step)

    def _fail_soon(self, start: StartReplica, delay_ns: int, why: str, signal: str | None = None) -> None:
        """Plan the end of each worker of a member, by `signal` or with code 1, some milliseconds after the delay."""
        for rank in range(self._ctx.graph.role(start.replica.role).procs):
            delay = delay_ns + self._notices_after(start, rank)
            self._ctx.queue.after(delay, self._fail, start, rank, why, signal)

    def _notices_after(self, start: StartReplica, rank: int) -> int:
        """Return how many ns after its process group has failed a worker exits; drawn, but for seed 0."""
        if not self._ctx.seed:
            return NOTICES_NS
        drawn = DOUBLINGS * draw(self._ctx.seed, f"{start.replica}#{start.attempt}", "notices", rank)
        return round((NOTICES_NS_MIN << int(drawn)) * (1 + drawn - int(drawn)))

    def _fail(self, start: StartReplica, rank: int, why: str, signal: str | None) -> None:
        node, key = self._nodes[start.node], (start.replica, start.attempt)
        if key not in node.suspended and key not in node.hung:  # else it was suspended in time, or does nothing
            cause: ExitCause = "collective_timeout" if why == TIMED_OUT else ""
            node.exit_worker(*key, rank, code=0 if signal else 1, signal=signal, detail=why, cause=cause)
