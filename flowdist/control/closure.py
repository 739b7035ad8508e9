"""If this restarts, what restarts with it? The set is computed once, from the graph alone (R5)."""

from __future__ import annotations

from flowdist.control.ids import ReplicaId, WorldName
from flowdist.control.state import JobState, World
from flowdist.graph import RoleGraph
from flowdist.graph.model import Scope


def scope_worlds(job: JobState, replica: ReplicaId, scope: Scope) -> list[WorldName]:
    """The worlds that the failure of a replica restarts by its own scope, before anything follows from that."""
    role = job.roles[replica.role]
    if scope == "replica" and not role.spec.gang:
        return [job.replicas[replica].world]
    names = [replica.role]
    if scope == "domain" and (domain := job.graph.domain_of(replica.role)):
        names = list(domain.roles)
    if scope == "job":
        names = list(job.roles)
    return [world for name in names for world in job.roles[name].worlds]


def closure(job: JobState, seeds: list[WorldName]) -> dict[WorldName, None]:
    """The seeds and all that restarts because of them, in the order of the graph. Cycles end: it is a set.

    Only worlds that run, or are about to, are in it: what has not started has nothing to restart, and what has
    ended does not run again because of others (R17).
    """
    chosen = dict.fromkeys(seeds)
    roles = list(dict.fromkeys(job.worlds[name].role for name in seeds))
    for role in roles:  # grows while it is walked
        for follower in followers(job.graph, role):
            chosen.update(dict.fromkeys(job.roles[follower].worlds))
            # What does not restart is no new incarnation either: nothing follows from it.
            if follower not in roles and any(may_restart(job.worlds[name]) for name in job.roles[follower].worlds):
                roles.append(follower)
    return {name: None for name in job.worlds if name in chosen and may_restart(job.worlds[name])}


def followers(graph: RoleGraph, role: str) -> list[str]:
    """The roles that restart in whole when any replica of `role` does: its domain, and edges that say so."""
    domain = graph.domain_of(role)
    names = list(domain.roles) if domain else []
    names += [spec.name for spec, gate in graph.dependents(role) if gate.on_restart == "restart"]
    return names


def may_restart(world: World) -> bool:
    return world.phase in ("opening", "running", "stopping") or (
        world.phase == "waiting" and world.incident is not None
    )


def upstream_of(graph: RoleGraph, role: str) -> dict[str, None]:
    """Every role that this one depends on, over any number of gates."""
    found: dict[str, None] = {}
    todo = [role]
    while todo:
        for gate in graph.role(todo.pop()).gates:
            if gate.role not in found:
                found[gate.role] = None
                todo.append(gate.role)
    return found
