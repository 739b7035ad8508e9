"""The invariants in one simulation of a large job, in time that grows with its events and not with their square.

Everything is checked after each event while the job is small. In a larger one it is checked as often as events have
paid for it, and in between after each event what that event and its effects speak of: their nodes, replicas, and those
worlds of theirs that are not what they were. What is wrong elsewhere comes up with the next check of everything.
"""

from __future__ import annotations

from flowdist.control.invariants.invariants import check_candidates, check_job, check_node, check_replica, check_world
from flowdist.control.job.state import JobState
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import format_duration
from flowdist.record.journal import Record
from flowdist.sim.checks.watching import PROGRESS

SMALL = 128  # nodes, replicas and incidents of a job that is checked in full after each event
SHARE = 32  # of those of a larger job: for how many one event pays

Key = tuple[object, ...]


class Pace:
    """Of one job. A controller that took over has another job, and another pace, which begins with everything."""

    def __init__(self) -> None:
        self._left = 0  # events until everything is checked
        self._held: tuple[int, int] = (0, 0)  # the last event after which all was found right, and when it was
        self._worlds: dict[str, Key] = {}

    def check(self, job: JobState, line: Record) -> None:
        """AssertionError, with the names of what is wrong, when an invariant does not hold after that event."""
        if self._left > 0 and isinstance(line.event, PROGRESS):
            return
        self._left -= 1
        try:
            if self._left > 0:
                self._check_named(job, line)
                return
            check_job(job)
        except AssertionError as error:
            raise AssertionError(f"{error}{self._since(line)}") from error
        size = len(job.nodes) + len(job.replicas) + len(job.incidents)
        self._left = size // SHARE if size > SMALL else 0
        self._held = (line.n, line.t_ns)

    def _since(self, line: Record) -> str:
        """Where to look for the cause, if it may be earlier than the event after which it was seen."""
        number, at = self._held
        if line.n <= number + 1:
            return ""
        return f" (seen after event {line.n}; everything held after event {number}, at {format_duration(at)})"

    def _check_named(self, job: JobState, line: Record) -> None:
        nodes: dict[NodeName, None] = {}
        replicas: dict[ReplicaId, None] = {}
        for told in (line.event, *line.effects):
            node, id = getattr(told, "node", None), getattr(told, "replica", None)
            if node in job.nodes:
                nodes[node] = None
            if id in job.replicas:
                replicas[id] = None
        for id in replicas:
            replica = job.replicas[id]
            check_replica(job, replica, job.roles[id.role])
            self._check_world(job, replica.world)
            if replica.node is not None:
                nodes[replica.node] = None
        for name in nodes:
            if len(job.nodes[name].replicas) <= SMALL:
                check_node(job, name, job.nodes[name])
            check_candidates(job, name)

    def _check_world(self, job: JobState, name: str) -> None:
        """Where it is not what it was: each of its members has changed, too, or is about to."""
        world = job.worlds[name]
        key = (world.phase, world.generation, world.incident, world.retiring)
        if self._worlds.get(name) != key:
            self._worlds[name] = key
            check_world(job, world)
