"""Outages of services: which worlds cannot work meanwhile, and when services stand still because of injected faults."""

from __future__ import annotations

from collections.abc import Iterable

from flowdist.control.job.state import OVER_PHASES, JobState
from flowdist.control.protocol.ids import ReplicaId, WorldName
from flowdist.faults.grammar import FaultError, parse_fault
from flowdist.record.journal import FaultLine


class Outages:
    """Replicas of services that do not serve now, of one job. The caller says when that begins and ends.

    Here, too, are the turns of services that an injected fault stops: when they stand still, and when they go on.
    """

    def __init__(self, job: JobState) -> None:
        self._job = job
        self._away: dict[ReplicaId, None] = {}
        self._turns: list[tuple[int, ReplicaId, bool]] = []  # ns, and whether the replica stands still from then on
        self._users: dict[str, tuple[WorldName, ...]] = {}
        for name in job.roles:
            users = [spec.name for spec, _ in job.graph.dependents(name) if spec.kind == "task"]
            self._users[name] = tuple(dict.fromkeys(world for user in users for world in job.roles[user].worlds))

    def note_fault(self, line: FaultLine, hit: Iterable[ReplicaId]) -> None:
        """Note the turns of the services among the replicas that a fault has hit."""
        try:
            fault = parse_fault(line.spec)
        except FaultError:
            return  # of another version
        if fault.kind not in ("pause", "hang"):
            return
        for replica in hit:
            if self._job.role_of(replica).spec.kind == "service":
                self._turns.append((line.t_ns, replica, True))
                if fault.kind == "pause" and fault.duration_ns is not None:
                    self._turns.append((line.t_ns + fault.duration_ns, replica, False))

    def forget_fault(self, replica: ReplicaId) -> None:
        """Forget what has stopped a replica: another attempt of it starts."""
        self._turns = [turn for turn in self._turns if turn[1] != replica]

    def turns(self, now: int) -> list[tuple[int, ReplicaId, bool]]:
        """Return the turns up to `now`, in order, each once: time, replica, whether it stands still from then on."""
        due = sorted(turn for turn in self._turns if turn[0] <= now)
        self._turns = [turn for turn in self._turns if turn[0] > now]
        return due

    def begin(self, server: ReplicaId) -> tuple[WorldName, ...]:
        """Note that a replica of a service does not serve any more, and return the worlds that depend on it."""
        self._away[server] = None
        return self._users[server.role]

    def end(self, server: ReplicaId) -> list[WorldName]:
        """Note that a replica serves; if it was away, return the worlds that waited for it, and for nothing else."""
        if self._away.pop(server, server) is not None:
            return []
        return [world for world in self._users[server.role] if not self.is_any_of(world)]

    def is_any_of(self, world: WorldName) -> bool:
        """Return whether a replica that the world depends on is away, and is wanted."""
        return any(
            world in self._users[server.role]
            and server.index < self._job.roles[server.role].target
            and self._job.replicas[server].phase not in OVER_PHASES
            for server in self._away
        )

    def worlds_hit(self, replicas: Iterable[ReplicaId]) -> list[WorldName]:
        """Return the worlds that a fault may keep from work, each once: of these replicas, or dependent on them."""
        found: dict[WorldName, None] = {}
        for replica in replicas:
            is_service = self._job.roles[replica.role].spec.kind == "service"
            found |= dict.fromkeys(self._users[replica.role] if is_service else (self._job.replicas[replica].world,))
        return list(found)
