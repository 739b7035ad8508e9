"""Restart sets: the worlds that restart because others do. Computed once, from the graph and the phases (R5)."""

from __future__ import annotations

from flowdist.control.job.state import JobState, Role, World
from flowdist.control.protocol.ids import ReplicaId, WorldName
from flowdist.graph.policies import Scope


def scope_worlds(job: JobState, replica: ReplicaId, scope: Scope) -> list[WorldName]:
    """Return the worlds that the scope of a failure names, before others follow from these."""
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
    """Return the seeds and all worlds that restart because of them, in the order of the graph.

    It is a set, so that cycles of edges end. A world that has not started, or has ended, is not in it (R17).
    """
    chosen = dict.fromkeys(seeds)
    restarting = [job.worlds[name] for name in seeds if may_restart(job.worlds[name])]
    roles = list(dict.fromkeys(role for world in restarting for role in world.roles))
    for role in roles:  # grows while it is walked
        for follower in followers(job, job.roles[role]):
            worlds = [job.worlds[name] for name in job.roles[follower].worlds]
            chosen.update((world.name, None) for world in worlds)
            # A world that does not restart has no new incarnation: nothing follows from it.
            for world in worlds if follower not in roles else ():
                if may_restart(world):
                    roles += [other for other in world.roles if other not in roles]
    return {name: None for name in job.in_order(chosen) if may_restart(job.worlds[name])}


def followers(job: JobState, role: Role) -> list[str]:
    """Return the roles that restart as a whole when a replica of `role` does: its domain, and edges that say so."""
    domain = job.graph.domain_of(role.spec.name)
    names = list(domain.roles) if domain else []
    return names + [name for name, gate in role.dependents if gate.on_restart == "restart"]


def may_restart(world: World) -> bool:
    """Return whether the world runs or is about to, so that there is something to restart."""
    return world.phase in ("opening", "running", "stopping") or (
        world.phase == "waiting" and world.incident is not None
    )
