"""Outages: the replicas of services that are away or stand still, and the worlds that wait for them.

A world depends on the services that its roles have a gate on. It waits for a replica that has served and does not any
more, until that serves again, wherever that is, or is not wanted any longer.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowdist.control.job.state import OVER_PHASES, JobState
from flowdist.control.protocol.ids import ReplicaId, WorldName


class Outages:
    """Replicas of services that do not serve now, of one job. The caller says when that begins and ends."""

    def __init__(self, job: JobState) -> None:
        self._job = job
        self._away: dict[ReplicaId, None] = {}
        self._users: dict[str, tuple[WorldName, ...]] = {}
        for name in job.roles:
            users = [spec.name for spec, _ in job.graph.dependents(name) if spec.kind == "task"]
            self._users[name] = tuple(dict.fromkeys(world for user in users for world in job.roles[user].worlds))

    def begin(self, server: ReplicaId) -> tuple[WorldName, ...]:
        """Note that a replica of a service does not serve any more, and return the worlds that depend on it."""
        self._away[server] = None
        return self._users[server.role]

    def end(self, server: ReplicaId) -> list[WorldName]:
        """Note that a replica of a service serves, and return the worlds that depend on it and wait for nothing else.

        They are none if it was not away.
        """
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
        """Return the worlds that a fault of these replicas may keep from work: their own, or those that depend on them.

        Each is named once.
        """
        found: dict[WorldName, None] = {}
        for replica in replicas:
            is_service = self._job.roles[replica.role].spec.kind == "service"
            found |= dict.fromkeys(self._users[replica.role] if is_service else (self._job.replicas[replica].world,))
        return list(found)
