"""Computation of restart sets, from the graph and the phases of worlds: what restarts because others do (R5)."""

from __future__ import annotations

from flowdist.control.job.state import JobState, Role, World
from flowdist.control.protocol.ids import ReplicaId, WorldName
from flowdist.graph.policies import Scope


def scope_worlds(job: JobState, replica: ReplicaId, scope: Scope) -> list[WorldName]:
    """Return the worlds that a failure of the replica restarts by this scope alone, before `closure` adds others.

    In a gang the scope "replica" means the whole gang. In a role without a domain the scope "domain" means the role.
    """
    role = job.roles[replica.role]
    if scope == "replica" and not role.spec.gang:
        return [job.replicas[replica].world]
    names = [replica.role]
    if scope == "domain" and (domain := job.graph.domain_of(replica.role)):
        names = list(domain.roles)
    if scope == "job":
        names = list(job.roles)
    return list(dict.fromkeys(world for name in names for world in job.roles[name].worlds))


def closure(job: JobState, seeds: list[WorldName]) -> dict[WorldName, None]:
    """Return these worlds and all that restart because of them (their restart set), in the order of the graph.

    A restart passes from role to role: to all roles of its domain, and over gates with `on_restart="restart"`. Cycles
    are no problem. A world that has not started, or has ended, is left out, even if it is one of the `seeds` (R17).
    """
    chosen = dict.fromkeys(seeds)
    restarting = [job.worlds[name] for name in seeds if may_restart(job.worlds[name])]
    roles = list(dict.fromkeys(role for world in restarting for role in world.roles))
    for role in roles:  # the loop appends to the list
        for follower in followers(job, job.roles[role]):
            worlds = [job.worlds[name] for name in job.roles[follower].worlds]
            chosen.update((world.name, None) for world in worlds)
            # Nothing follows from a world that does not restart itself.
            for world in worlds if follower not in roles else ():
                if may_restart(world):
                    roles += [other for other in world.roles if other not in roles]
    return {name: None for name in job.in_order(chosen) if may_restart(job.worlds[name])}


def followers(job: JobState, role: Role) -> list[str]:
    """Return the names of the roles of which every world restarts with `role`: its domain, and "restart" dependents."""
    domain = job.graph.domain_of(role.spec.name)
    names = list(domain.roles) if domain else []
    return names + [name for name, gate in role.dependents if gate.on_restart == "restart"]


def may_restart(world: World) -> bool:
    """Return whether the world has started and not ended: it opens, runs or stops, or an incident made it wait."""
    return world.phase in ("opening", "running", "stopping") or (
        world.phase == "waiting" and world.incident is not None
    )
