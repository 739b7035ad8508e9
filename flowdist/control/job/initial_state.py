"""State of a job before its first event, built from the graph."""

from __future__ import annotations

from flowdist.control.job.parts import CandidateIndex
from flowdist.control.job.state import JobState, Replica, Role, World
from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
from flowdist.graph import Gate, RoleGraph, RoleSpec
from flowdist.graph.capacity import needed


def new_job(graph: RoleGraph, known_nodes: tuple[NodeName, ...]) -> JobState:
    """Return the state of a job before its first event. Ties in placement go to the first of `known_nodes`."""
    job = JobState(graph, dict.fromkeys(known_nodes))
    job.node_order = {name: i for i, name in enumerate(known_nodes)}
    depths = depths_of(graph)
    dependents: dict[str, list[tuple[str, Gate]]] = {spec.name: [] for spec in graph.roles}
    upstream: dict[str, dict[str, None]] = {}
    after = _to_succeed_before(graph, depths)
    for spec in graph.roles:
        upstream[spec.name] = {}
        for gate in spec.gates:
            dependents[gate.role].append((spec.name, gate))
            upstream[spec.name] |= {gate.role: None, **upstream[gate.role]}
    for order, spec in enumerate(graph.roles):
        ids = tuple(ReplicaId(spec.name, index) for index in range(spec.max_replicas))
        joint = graph.world_of(spec.name)
        worlds = (joint.name if joint is not None else spec.name,) if spec.gang else tuple(map(str, ids))
        role = Role(
            spec,
            order,
            spec.max_replicas,
            needed(spec.resources),
            depths[spec.name],
            worlds,
            ids,
            dict.fromkeys(worlds),
            list(range(len(ids))),
            _candidates(job, spec),
            tuple(dependents[spec.name]),
            upstream[spec.name],
            after[spec.name],
        )
        job.roles[spec.name] = role
        job.live_at[role.depth] = 0
        role.unseated["waiting"] = len(ids)
        for replica, world in zip(ids, worlds * len(ids) if spec.gang else worlds, strict=True):
            job.replicas[replica] = Replica(replica, world)
    _add_worlds(job)
    return job


def _candidates(job: JobState, spec: RoleSpec) -> CandidateIndex:
    """Return the candidate index that roles of equal need and placement share, and add it if it is new."""
    need = needed(spec.resources)
    for candidates in job.candidate_indexes:
        if (candidates.need, candidates.placement) == (need, spec.placement):
            return candidates
    job.candidate_indexes.append(CandidateIndex(need, spec.placement))
    return job.candidate_indexes[-1]


def _add_worlds(job: JobState) -> None:
    pools: dict[WorldName, list[ReplicaId]] = {}
    for replica in job.replicas.values():
        pools.setdefault(replica.world, []).append(replica.id)
    for order, (name, pool) in enumerate(pools.items()):
        roles = tuple(dict.fromkeys(replica.role for replica in pool))
        job.worlds[name] = World(name, roles, tuple(pool), order)
        job.worlds[name].counts["waiting"] = len(pool)


def depths_of(graph: RoleGraph) -> dict[str, int]:
    """Return each role's depth in start order: 0, or one more than its deepest gate; joint worlds have one (R1)."""
    depths: dict[str, int] = {spec.name: 0 for spec in graph.roles}
    for _ in graph.roles:  # a joint world can deepen roles that were computed before it: repeat until nothing changes
        before = dict(depths)
        for spec in graph.roles:
            depths[spec.name] = max(depths[spec.name], *(1 + depths[gate.role] for gate in spec.gates), 0)
        for world in graph.worlds:
            depths |= dict.fromkeys(world.roles, max(depths[name] for name in world.roles))
        if depths == before:
            break
    return depths


def _to_succeed_before(graph: RoleGraph, depths: dict[str, int]) -> dict[str, dict[str, None]]:
    """Return, for each role, all roles that have to succeed before it starts, over any number of gates.

    A joint world starts and succeeds as one, so that a gate on or of one of its roles concerns all of them (R1).
    """
    mates: dict[str, tuple[str, ...]] = {spec.name: (spec.name,) for spec in graph.roles}
    mates |= {name: world.roles for world in graph.worlds for name in world.roles}
    specs = {spec.name: spec for spec in graph.roles}
    found: dict[str, dict[str, None]] = {}
    for name in sorted(depths, key=lambda name: depths[name]):  # a gate points to a role of less depth, found before
        found[name] = {}
        for gate in [gate for mate in mates[name] for gate in specs[mate].gates]:
            found[name] |= found[gate.role] | dict.fromkeys(mates[gate.role] if gate.condition == "succeeded" else ())
    return found
