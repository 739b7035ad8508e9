"""Restart table: the roles that restart together if all of them run, by the controller's own rule."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from flowdist.control.controller import Controller
from flowdist.control.incidents.restart_set import closure, scope_worlds
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import RoleGraph
from flowdist.graph.policies import Scope

Cause = Literal["failure", "node_lost"]
Extent = Literal["replica", "role"]


class RestartTable:
    """Restart sets of a job in which every role runs, with two replicas: two tell a replica from the whole role."""

    def __init__(self, graph: RoleGraph) -> None:
        pairs = tuple(replace(spec, min_replicas=1, max_replicas=2) for spec in graph.roles)
        self._job = Controller(replace(graph, roles=pairs)).state
        for world in self._job.worlds.values():
            world.phase = "running"

    def restart_set(self, role: str, cause: Cause, scope: Scope | None = None) -> dict[str, Extent]:
        """Return the roles that restart, and how much of each, when one replica of `role` fails or loses its node.

        By role, that is `role` if all of its replicas restart, and `replica` if only the replica itself does. `scope`
        None is that of the role's first policy; a role without one counts as `replica`. A lost node ignores it.
        """
        policy, failed = self._job.roles[role].spec.restart, ReplicaId(role, 0)
        scope = scope or (policy.scope if policy is not None else "replica")
        own = self._job.replicas[failed].world
        worlds = closure(self._job, [own] if cause == "node_lost" else scope_worlds(self._job, failed, scope))
        return {
            name: "role" if all(world in worlds for world in spec.worlds) else "replica"
            for name, spec in self._job.roles.items()
            if any(world in worlds for world in spec.worlds)
        }


def start_waves(graph: RoleGraph) -> list[list[str]]:
    """Return the names of the roles in waves: the gates of a role wait only for roles of earlier waves."""
    roles = Controller(graph).state.roles
    depths = sorted({role.depth for role in roles.values()})
    return [[name for name, role in roles.items() if role.depth == depth] for depth in depths]
