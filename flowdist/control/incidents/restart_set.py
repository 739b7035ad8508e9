"""Restart sets: what restarts because others do, from the graph and the phases of worlds (R5), and what stays in place.

A replica whose workers are all in elastic code is ordered to leave its generation instead of ending. Its workers are
*suspended* then: they have left the old generation (R6), and live on the seat that the replica keeps. The next start of
the replica continues with these workers. They end if the replica loses its seat, or has to start with new processes.
"""

from __future__ import annotations

from flowdist.control.job.state import Incident, JobState, Replica, Role, World
from flowdist.control.protocol.effects import StopReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
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


def may_stay(job: JobState, incident: Incident, world: World) -> bool:
    """Return whether the incident lets workers of the world stay in place. Each replica has conditions of its own, too.

    Workers may not stay in a world that hangs, after a change of addresses in their command, or if the incident
    restarts something that the world depends on: they still hold connections to it.
    """
    if world.hangs or incident.kind == "address_changed":
        return False
    upstream = {name for role in job.roles_of(world) for name in role.upstream}
    others = (role for name in incident.worlds if name != world.name for role in job.worlds[name].roles)
    return not any(role in upstream for role in others)


def leaves_in_place(job: JobState, replica: Replica) -> bool:
    """Return whether the replica itself can stop in place: its workers run elastic code, and it keeps node and GPUs."""
    if not replica.is_elastic or replica.phase not in ("running", "ready") or replica.node is None:
        return False
    node = job.nodes[replica.node]
    return node.usable and not node.is_leaving and node.bad_gpus.keys().isdisjoint(replica.gpus)


def note_suspended(job: JobState, replica: Replica) -> None:
    """Record that workers of the replica's ended attempt wait in place for its next start, unless its node is lost.

    This is recorded with the end: what else the same message tells may take these workers away.
    """
    if replica.node is not None and job.nodes[replica.node].usable:
        job.suspended[replica.id] = None


def end_suspended(job: JobState, replica: Replica) -> None:
    """Order workers that wait in place to be killed if their node is lost, so that nothing can continue them."""
    if replica.node is not None and not job.nodes[replica.node].usable:
        job.emit(StopReplica(replica.node, replica.id, replica.attempt, 0))


def take_suspended(job: JobState, replica: Replica) -> bool:
    """Return whether the start of the replica continues with its suspended workers, and forget that they are suspended.

    If their command names addresses that have changed they are ordered to end (R5).
    """
    before = replica.order
    if (
        before is not None
        and before.addresses != replica.known_addresses
        and job.role_of(replica.id).spec.address_edges
    ):
        job.dismiss(replica)
    continues = replica.id in job.suspended
    job.suspended.pop(replica.id, None)
    replica.is_elastic = replica.in_place = False
    return continues


def note_start(job: JobState, replica: Replica, world: World, before: NodeName | None, continues: bool) -> None:
    """Record a start of the replica in its counts and in the open incident of its world, if there is one.

    The new attempt has no version: workers that continue in place may have lost theirs, and have to say so (R23).

    The start counts as in place if it continues suspended workers (`continues`), and none of them was lost in the
    incident. `before` is the node of the attempt before; None: there was none.
    """
    incident = job.incident(world.incident) if world.incident is not None else None
    stays = continues and (incident is None or replica.id not in incident.lost)
    replica.starts_in_place += stays
    replica.version = -1
    replica.is_checked, replica.was_refused, replica.admitted = False, False, None
    if incident is not None:
        incident.restarted[replica.id] = None
        incident.stayed.pop(replica.id, None)
        if stays:
            incident.stayed[replica.id] = None
        if replica.node is not None and before not in (None, replica.node):
            incident.moved[replica.id] = replica.node


def staying(job: JobState, incident: Incident) -> int:
    """Return how many replicas of the incident have the order to leave in place, or are suspended already."""
    members = (member for name in incident.worlds for member in job.members_of(job.worlds[name]))
    return sum(member.in_place or member.id in job.suspended for member in members)
