"""Groups of roles in macro mode: each gang, with the roles beside it that depend on it or that it depends on.

Between two groups there are few links: the end of the job, the rule that no node is cordoned while a role lacks room
(R22), and gates of one gang on the start of another. So each group is played by a machine of its own (`job.Job`).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from flowdist.graph import RoleGraph, RoleSpec


class Group(NamedTuple):
    """A gang, and the roles beside it, in the order of the graph."""

    gang: RoleSpec
    beside: tuple[RoleSpec, ...]


def gang_of(graph: RoleGraph) -> RoleSpec:
    """Return the first gang of a primary task; without one the first primary task, or else the first role."""
    tasks = [role for role in graph.roles if role.kind == "task" and role.primary]
    return next((role for role in tasks if role.gang), next(iter(tasks), graph.roles[0]))


def gangs_of(graph: RoleGraph) -> list[RoleSpec]:
    """Return the role that `gang_of` returns, then all other gangs of tasks, in the order of the graph."""
    first = gang_of(graph)
    return [first, *(role for role in graph.roles if role is not first and role.gang and role.kind == "task")]


def joint_role(graph: RoleGraph) -> RoleSpec | None:
    """Return the roles of a joint world as one role with the name of the world; None if they are not all of the job.

    Its sizes are the sums of theirs. All else is that of the first of them.
    """
    for world in graph.worlds if len(graph.roles) > 1 else ():
        if len(world.roles) == len(graph.roles):
            least, most = (sum(getattr(role, f"{end}_replicas") for role in graph.roles) for end in ("min", "max"))
            return msgspec.structs.replace(graph.roles[0], name=world.name, min_replicas=least, max_replicas=most)
    return None


def groups_of(graph: RoleGraph) -> list[Group]:
    """Return the group of each gang, in the order of `gangs_of`. Each role is in one of them.

    A role beside the gangs is in the group of the first gang that one of its gates names, else of the first gang that
    has a gate on it, else of the first gang of all.
    """
    gangs = gangs_of(graph)
    owners = {role.name: _owner(role, gangs) for role in graph.roles if role not in gangs}
    return [Group(gang, tuple(role for role in graph.roles if owners.get(role.name) is gang)) for gang in gangs]


def _owner(role: RoleSpec, gangs: list[RoleSpec]) -> RoleSpec:
    """Return the gang of which `role`, which is no gang, is in the group."""
    named = [gang for gate in role.gates for gang in gangs if gang.name == gate.role]
    needed_by = [gang for gang in gangs for gate in gang.gates if gate.role == role.name]
    return [*named, *needed_by, gangs[0]][0]
