"""Worlds form: gates, seats, ranks, generations; and they grow.

A world forms when its gates are open and its maximum is seated, or its minimum and nobody else is expected (R1, R2).
Its store is opened first; no replica starts before the store's port is known (R4).
"""

from __future__ import annotations

from flowdist.control.deadlines import Due
from flowdist.control.effects import OpenStore, StartReplica
from flowdist.control.peers import addresses_for
from flowdist.control.placement import (
    Free,
    admit,
    before_success,
    best_node,
    explain,
    fill,
    free_capacity,
    seated,
    short_of_room,
    unplace,
)
from flowdist.control.recovery import close_store, open_incident, was_healthy
from flowdist.control.state import JobState, Replica, Role, World
from flowdist.graph import format_duration, needed
from flowdist.graph.model import GateCondition


def form_worlds(job: JobState) -> None:
    """Open every world that may form now, in the order of the graph; grow those that may."""
    free = free_capacity(job)
    if not job.admitted and not _admit_all(job, free):
        return
    for role in job.roles.values():
        if role.outcome is not None:
            continue
        if role.spec.gang:
            _form_gang(job, role, free)
        else:
            _form_replicas(job, role, free)


def _admit_all(job: JobState, free: Free) -> bool:
    """The minima of all roles that can be alive at the same time are seated together, or none is (R2)."""
    if not free:
        return False
    if missing_nodes(job):  # seats given now would all be on the nodes that happened to come first
        window = max(role.spec.join_window_ns for role in job.roles.values())
        job.due.set_once(Due("arrivals"), job.now + window)
        return False
    job.due.clear(Due("arrivals"))
    if len(free) < job.graph.cluster.min_nodes:
        return False
    roles = [role for role in job.roles.values() if not before_success(job, role.spec)]
    short = admit(job, free, roles)
    if not short:
        job.admitted = True
        job.due.clear(Due("admission"))
        return True
    _complain(job, short[0])
    return False


def why_not_admitted(job: JobState) -> str:
    """What the first wave waits for: nodes, or room on those that are there."""
    up, least = len(free_capacity(job)), job.graph.cluster.min_nodes
    if up < least:
        return f"{up} of at least {least} nodes are up"
    roles = [role for role in job.roles.values() if not before_success(job, role.spec)]
    short = short_of_room(job, free_capacity(job), roles)
    return explain(job, short[0] if short else roles[0])


def missing_nodes(job: JobState) -> list[str]:
    """Nodes that are expected and have not joined."""
    return [name for name in job.known_nodes if name not in job.nodes or not job.nodes[name].usable]


def _complain(job: JobState, role: Role) -> None:
    """Say once why a role does not start, for as long as it does not."""
    if not role.complained:
        role.complained = True
        timeout = format_duration(role.spec.pending_timeout_ns)
        job.notify(f"waiting up to {timeout} for room: {explain(job, role)}", "warning")


def _form_gang(job: JobState, role: Role, free: Free) -> None:
    world = job.worlds[role.worlds[0]]
    if world.phase == "running":
        _grow(job, role, world, free)
    if world.phase != "waiting" or not _may_form(job, role, world):
        return
    for replica in seated(job, role)[role.target :]:
        unplace(job, replica)  # the operator scaled down: the highest go
    admit(job, free, [role])
    _seat_more(job, role, free, role.target - len(seated(job, role)))
    members = seated(job, role)
    if not _has_minimum(job, role, len(members)):
        return
    window = Due("window", world.name)
    if len(members) < role.target and missing_nodes(job):
        job.due.set_once(window, job.now + role.spec.join_window_ns)
        return
    job.due.clear(window)
    _open(job, role, world, members)


def _form_replicas(job: JobState, role: Role, free: Free) -> None:
    worlds = [world for world in job.worlds_of(role) if world.phase == "waiting"]
    may = [world for world in worlds if _may_form(job, role, world)]
    if not may:
        return
    if occupied(job, role) < role.spec.min_replicas:
        admit(job, free, [role])
    closing = any(replica.phase == "succeeded" for replica in job.replicas_of(role))
    if not closing:
        _seat_more(job, role, free, role.target - occupied(job, role))
    _has_minimum(job, role, occupied(job, role))
    for world in may:
        replica = job.replicas[world.pool[0]]
        if replica.node is not None:
            _open(job, role, world, [replica])


def occupied(job: JobState, role: Role) -> int:
    """How many replicas have a seat, or need none any more."""
    return sum(replica.node is not None or replica.phase in ("succeeded", "ended") for replica in job.replicas_of(role))


def _seat_more(job: JobState, role: Role, free: Free, count: int) -> int:
    waiting = [replica for replica in job.replicas_of(role) if replica.node is None and replica.phase == "waiting"]
    return fill(job, role, waiting, count, free, growing=True)


def _has_minimum(job: JobState, role: Role, count: int) -> bool:
    """Below its minimum a role waits for a node, but not for ever (R12)."""
    pending = Due("pending", role.spec.name)
    if count >= role.spec.min_replicas:
        job.due.clear(pending)
        role.complained = False
        return True
    job.due.set_once(pending, job.now + role.spec.pending_timeout_ns)
    if not missing_nodes(job):
        _complain(job, role)
    return False


def _may_form(job: JobState, role: Role, world: World) -> bool:
    if world.incident is not None:
        incident = job.incident(world.incident)
        if incident.phase != "starting" or Due("backoff", str(incident.number)) in job.due:
            return False
    return not closed_gates(job, role)


def closed_gates(job: JobState, role: Role) -> list[str]:
    """What the role waits for, in words; empty when it may start (R1)."""
    return [
        f"{gate.role} to be {gate.condition}" if gate.condition != "succeeded" else f"{gate.role} to succeed"
        for gate in role.spec.gates
        if not is_so_far(job, job.roles[gate.role], gate.condition)
    ]


def is_so_far(job: JobState, role: Role, condition: GateCondition) -> bool:
    """A role is started, or ready, when each of its replicas that has a seat is, and these are its minimum at least.

    Success counts as both: what has done its work has been up. Whatever failed or was ignored is neither.
    """
    if role.outcome is not None or condition == "succeeded":
        return role.outcome == "succeeded"
    enough = ("ready", "succeeded") if condition == "ready" else ("running", "ready", "succeeded")
    replicas = [replica for replica in job.replicas_of(role) if replica.node or replica.phase == "succeeded"]
    return len(replicas) >= role.spec.min_replicas and all(replica.phase in enough for replica in replicas)


def _open(job: JobState, role: Role, world: World, members: list[Replica]) -> None:
    """A new generation: its members are fixed, its store is opened on the node of rank 0."""
    world.generation += 1
    before = world.members
    world.members = tuple(replica.id for replica in members)
    for replica in members:
        if replica.id not in before or replica.member_since == 0:
            replica.member_since = world.generation
    for replica in job.replicas_of(role):
        if replica.id in before and replica.id not in world.members:
            replica.member_since = 0
    world.phase = "opening"
    world.store_node, world.store_port = members[0].node, None
    world.grow_at_once = world.progressed = False
    assert world.store_node is not None
    eager = role.spec.kind == "task" and len(members) * role.spec.procs > 1
    job.emit(OpenStore(world.store_node, world.name, world.generation, eager))
    if role.spec.gang:
        many = f"{len(members)} replica{'s' * (len(members) != 1)}"
        job.notify(f"{world.name}: generation {world.generation} forms with {many} of at most {role.target}")


def start_members(job: JobState, world: World) -> None:
    """The store is open: start every member, with ranks in order of replica and local rank (R3)."""
    role = job.roles[world.role]
    members = job.members_of(world)
    procs = role.spec.procs
    world.phase = "running"
    world.formed_ns = None
    source = min(range(len(members)), key=lambda i: (members[i].member_since, i))
    store = job.nodes[world.store_node] if world.store_node is not None else None
    assert store is not None and world.store_port is not None
    everybody = seated(job, role)
    for i, replica in enumerate(members):
        assert replica.node is not None
        replica.attempt += 1
        replica.phase, replica.started_ns = "starting", job.now
        role_rank = i if role.spec.gang else everybody.index(replica)
        replica.told = addresses_for(job, role)
        replica.order = StartReplica(
            node=replica.node,
            replica=replica.id,
            attempt=replica.attempt,
            world=world.name,
            generation=world.generation,
            rank=i * procs,
            world_size=len(members) * procs,
            group_rank=i,
            group_world_size=len(members),
            role_rank=role_rank * procs,
            role_world_size=(len(members) if role.spec.gang else len(everybody)) * procs,
            source_rank=source * procs,
            master_addr=store.address,
            master_port=world.store_port,
            gpus=replica.gpus,
            addresses=replica.told,
        )
        if world.incident is not None:
            job.incident(world.incident).restarted[replica.id] = None
        job.emit(replica.order)


def abandon_opening(job: JobState, world: World) -> None:
    """A seat was lost before anything started: choose the members anew."""
    close_store(job, world)
    world.phase = "waiting"


def note_formed(job: JobState, world: World) -> None:
    """The last member was heard of: the generation runs."""
    if all(replica.phase not in ("starting", "stopping") for replica in job.members_of(world)):
        world.formed_ns = job.now


def _grow(job: JobState, role: Role, world: World, free: Free) -> None:
    """Arrivals become one re-formation, after the cool-down, and never while the world is closing (R13, R17)."""
    cooldown = Due("cooldown", world.name)
    busy = world.incident is not None or world.formed_ns is None or job.ending is not None
    closing = any(replica.phase == "succeeded" for replica in job.members_of(world))
    room = role.target - len(world.members)
    if busy or closing or room <= 0 or best_node(needed(role.spec.resources), free) is None:
        job.due.clear(cooldown)
        return
    earliest = _may_grow_from(job, role, world)
    if job.now < earliest:
        job.due.set(cooldown, earliest)
        return
    job.due.clear(cooldown)
    kind = "scaled" if world.grow_at_once else "joined"
    came = _seat_more(job, role, free, room)
    if came == 0:
        return
    names = [str(replica.id) for replica in seated(job, role) if replica.id not in world.members]
    open_incident(
        job,
        kind=kind,
        root=names[0],
        root_role=None,
        reason=f"room for {', '.join(names)}",
        because="a change of membership, not counted",
        counted=False,
        seeds=[world.name],
    )


def _may_grow_from(job: JobState, role: Role, world: World) -> int:
    assert world.formed_ns is not None
    if world.grow_at_once:
        return job.now
    wait = role.spec.cooldown_ns
    options = job.graph.options
    if world.free_row >= options.free_incidents_max - 1 and not was_healthy(job, world):
        wait = max(wait, options.min_uptime_ns)  # growing is our own choice: it must not be what fails the job (R8)
    return world.formed_ns + wait
