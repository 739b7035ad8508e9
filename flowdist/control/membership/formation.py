"""Formation and growth of worlds: gates (R1), seats (R2), ranks and generations.

The store of a world is opened first: no replica starts before the port of the store is known (R4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from flowdist.control.incidents.applied_rules import backs_off_until, was_healthy
from flowdist.control.incidents.ending import close_store
from flowdist.control.incidents.recovery import open_incident
from flowdist.control.incidents.restart_set import closure, note_start, take_suspended
from flowdist.control.incidents.retiring import end_ignored
from flowdist.control.job.deadlines import Due
from flowdist.control.job.facts import FREE
from flowdist.control.job.state import JobState, Replica, Role, World
from flowdist.control.membership.addresses import addresses_for
from flowdist.control.membership.samples import count_samples
from flowdist.control.placement.placement import (
    admit,
    before_success,
    explain,
    fill,
    has_room,
    seated,
    short_of_room,
    unplace,
)
from flowdist.control.protocol.effects import OpenStore, StartReplica
from flowdist.control.protocol.ids import ReplicaId, WorldName
from flowdist.control.rules import growth_wait_ns
from flowdist.control.snapshots.choosing import choose
from flowdist.graph import format_duration
from flowdist.graph.role_graph import GateCondition


def form_worlds(job: JobState, names: Iterable[WorldName]) -> None:
    """Form each of these worlds, in the order of the graph, that may form now; grow each running gang that may grow.

    Nothing forms before the job is admitted (R2). A world whose gate can never open ends, and a job that needs it (R9).
    """
    if not job.admitted and not _admit_all(job):
        return
    found = [job.worlds[name] for name in names]
    seatless = {world.roles[0] for world in found if world.phase == "waiting" and not job.is_gang(world)}
    loose: dict[str, list[World]] = {}
    later: list[World] = []
    for world in found:
        roles = job.roles_of(world)
        if world.phase not in ("waiting", "running") or roles[0].outcome is not None:  # a joint world has one outcome
            continue
        if world.phase == "running":
            if roles[0].spec.gang:
                _grow(job, world, roles)
        elif gate := _lost_gate(job, roles):
            end_ignored(job, world, gate)
            if job.ending is not None:
                return
        elif not roles[0].spec.gang:
            loose.setdefault(world.roles[0], []).append(world)
        elif _waits_for_seats(roles, seatless):
            later.append(world)
        elif _may_form(job, world):
            _form_gang(job, world, roles)
    if loose or later:
        _form_rest(job, loose, later)


def _form_rest(job: JobState, loose: dict[str, list[World]], later: list[World]) -> None:
    """Form the worlds in `loose`, by role, which are no gangs; then those in `later`, gangs that waited for them."""
    for role_name, worlds in loose.items():
        _form_replicas(job, job.roles[role_name], [world for world in worlds if _may_form(job, world)])
    for world in later:
        if _may_form(job, world):
            _form_gang(job, world, job.roles_of(world))


def _waits_for_seats(roles: list[Role], seatless: Collection[str]) -> bool:
    """Return whether a role has a gate on one of `seatless`, which are about to get seats, and so not started (R1)."""
    return bool(seatless) and any(gate.role in seatless for role in roles for gate in role.spec.gates)


def _admit_all(job: JobState) -> bool:
    """Seat the minima of all roles that wait for no success, or none of them (R2); return whether the job is admitted.

    While expected nodes are missing it waits, for at most `join_window` after the first node has joined.
    """
    if not job.free:
        return False
    if job.missing:  # seats given now would all be on the nodes that have joined first
        window = max(role.spec.join_window_ns for role in job.roles.values())
        job.due.set_once(Due("arrivals"), job.now + window)
        return False
    job.due.clear(Due("arrivals"))
    if len(job.free) < job.graph.cluster.min_nodes:
        return False
    short = admit(job, _first_roles(job))
    if short is not None:
        _warn_of_waiting(job, short)
        return False
    job.admitted = True
    job.due.clear(Due("admission"))
    for role in job.roles.values():
        job.touch_role(role)
    return True


def _first_roles(job: JobState) -> list[Role]:
    """Return the roles of the first wave: those that do not wait for the success of others."""
    return [role for role in job.roles.values() if not before_success(job, role.spec)]


def why_not_admitted(job: JobState) -> str:
    """Return, as text, what the admission of the job waits for: more nodes, or room on the nodes that have joined."""
    up, least = len(job.free), job.graph.cluster.min_nodes
    if up < least:
        return f"{up} of at least {least} nodes are up"
    roles = _first_roles(job)
    return explain(job, short_of_room(job, roles) or roles[0])


def _warn_of_waiting(job: JobState, role: Role) -> None:
    """Tell the user why the role finds no room, unless that was done since it last had its minimum."""
    if not role.warning_sent:
        role.warning_sent = True
        timeout = format_duration(role.spec.pending_timeout_ns)
        job.decided(
            "waits_for_room", role.spec.name, f"waiting up to {timeout} for room: {explain(job, role)}", "warning"
        )


def _form_gang(job: JobState, world: World, roles: list[Role]) -> None:
    """Seat up to the target of each role of a gang whose gates are open, and open a generation, or wait for room."""
    for role in roles:
        for replica in seated(job, role)[role.target :] if role.seats > role.target else ():
            unplace(job, replica)  # the operator scaled down: the highest indexes lose their seats
    was_up = world.generation > 0 and any(
        replica.node not in job.warming for role in roles for replica in seated(job, role)
    )
    if any(role.occupied < role.spec.min_replicas for role in roles):
        admit(job, roles)
    later = job.warming if was_up else ()  # a world that was up does not wait for the imports of new nodes (R13)
    for role in roles:
        fill(job, role, role.target - role.seats, without=later)
    have = [_has_minimum(job, role, role.seats) for role in roles]  # a list: every role below its minimum is to warn
    if not all(have):
        return
    for role in roles:
        whole = role.seats - role.seats % role.spec.step  # a part of a block forms no mesh
        for replica in seated(job, role)[whole:] if whole < role.seats else ():
            unplace(job, replica)
            job.unsatisfied[role.spec.name] = None
    _open(job, world, [replica for role in roles for replica in seated(job, role)])


def _form_replicas(job: JobState, role: Role, worlds: list[World]) -> None:
    """Seat replicas of a role that is no gang, and open a generation of each world whose replica has a seat."""
    if not worlds:
        return
    if role.occupied < role.spec.min_replicas:
        admit(job, [role])
    if not role.count("succeeded"):
        returning = role.unseated["gone"]  # they keep their indexes and count for the target
        fill(job, role, role.target - role.seats - returning)  # ignored replicas do not reduce the seats
    _has_minimum(job, role, role.occupied)
    for world in worlds:
        replica = job.replicas[world.pool[0]]
        if replica.node is not None:
            _open(job, world, [replica])


def _has_minimum(job: JobState, role: Role, count: int) -> bool:
    """Return whether `count` reaches the role's minimum, and record it: below, `pending_timeout` begins (R12)."""
    pending = Due("pending", role.spec.name)
    if count >= role.spec.min_replicas:
        job.due.clear(pending)
        role.warning_sent = False
        return True
    job.unsatisfied[role.spec.name] = None
    job.due.set_once(pending, job.now + role.spec.pending_timeout_ns)
    _warn_of_waiting(job, role)
    return False


def _may_form(job: JobState, world: World) -> bool:
    """Return whether the gates are open, and an incident's restart set is gone and its back-off is over."""
    if world.incident is not None:
        incident = job.incident(world.incident)
        if incident.phase != "starting" or Due("backoff", str(incident.number)) in job.due:
            return False
    return not any(closed_gates(job, role) for role in job.roles_of(world))


def closed_gates(job: JobState, role: Role) -> list[str]:
    """Return what each closed gate of the role waits for, as in `ps to be ready`; empty if all are open (R1)."""
    return [
        f"{gate.role} to be {gate.condition}" if gate.condition != "succeeded" else f"{gate.role} to succeed"
        for gate in role.spec.gates
        if not meets_condition(job, job.roles[gate.role], gate.condition)
    ]


def _lost_gate(job: JobState, roles: list[Role]) -> str:
    """Return the name of the first role that cannot open a gate of these roles any more; empty if there is none."""
    for role in roles:
        for gate in role.spec.gates:
            upstream = job.roles[gate.role]
            if is_lost(upstream) and not meets_condition(job, upstream, gate.condition):
                return gate.role
    return ""


def is_lost(role: Role) -> bool:
    """Return whether the role was ignored or has failed, or too many replicas have ended for its minimum."""
    left = len(role.replicas) - role.count("ended")
    return role.outcome in ("ignored", "failed") or left < role.spec.min_replicas


def meets_condition(job: JobState, role: Role, condition: GateCondition) -> bool:
    """Return whether the role meets the condition of a gate, see `conditions_met`."""
    started, ready, succeeded = conditions_met(job, role)
    return {"started": started, "ready": ready, "succeeded": succeeded}[condition]


def conditions_met(job: JobState, role: Role) -> tuple[bool, bool, bool]:
    """Return whether the role is started, is ready, and has succeeded (R1).

    Each replica with a seat has to be started (or ready), and these the minimum at least; success counts as both.
    """
    if role.outcome is not None:
        is_done = role.outcome == "succeeded"
        return is_done, is_done, is_done
    ready = role.seated["ready"] + role.seated["succeeded"]
    started = ready + role.seated["running"]
    wanted = role.spec.min_replicas - role.unseated["succeeded"]
    if started != role.seats or started < wanted or _awaits_own_gates(job, role):
        return False, False, False
    return True, ready == role.seats and ready >= wanted, False


def _awaits_own_gates(job: JobState, role: Role) -> bool:
    """Return whether replicas that an incident stopped wait for the role's own gates: it does not count as started.

    Replicas whose gates are open but that find no room do not block the dependents (R1).
    """
    is_closed = job.open and closed_gates(job, role)
    return bool(is_closed) and any(job.worlds[name].incident is not None for name in role.waiting)


def touch_dependents(job: JobState, roles: Iterable[Role]) -> None:
    """Let settling visit the worlds that a change of these roles concerns.

    These are the worlds of the dependents, if the role now meets other gate conditions than when they were last marked
    (R1), and the role's own worlds, if it has reached or lost its minimum.
    """
    for role in roles:
        if role.dependents:
            shown = (*conditions_met(job, role), is_lost(role))
            if shown != role.shown:
                role.shown = shown
                for name, _ in role.dependents:
                    job.touch_role(job.roles[name])
        has_minimum = role.seats >= role.spec.min_replicas
        if has_minimum != role.has_minimum:
            role.has_minimum = has_minimum
            job.touch_role(role)


def _open(job: JobState, world: World, members: list[Replica]) -> None:
    """Begin a new generation with these members, in order of ranks, and open its store on the node of rank 0."""
    world.generation += 1
    before = frozenset(world.members)
    world.members = tuple(replica.id for replica in members)
    for replica in members:
        if replica.id not in before or replica.member_since == 0:
            replica.member_since = world.generation
    for gone in before.difference(world.members):
        job.replicas[gone].member_since = 0
    job.turn(world, "opening")
    assert members[0].node is not None
    world.store_node, world.store_port = members[0].node, None
    job.nodes[members[0].node].stores[world.name] = None
    world.grow_at_once = world.progressed = world.hangs = False
    world.stepped_ns = world.unstepped_in = None
    roles = job.roles_of(world)
    for replica in members:
        assert replica.node is not None
        replica.procs = job.role_of(replica.id).spec.procs_on(job.nodes[replica.node].spec)
    eager = roles[0].spec.kind == "task" and _workers(members) > 1
    job.emit(OpenStore(members[0].node, world.name, world.generation, eager))
    if roles[0].spec.gang:
        many = f"{len(members)} replica{'s' * (len(members) != 1)}"
        most = sum(role.target for role in roles)
        job.decided(
            "world_forms",
            world.name,
            f"{world.name}: generation {world.generation} forms with {many} of at most {most}",
        )


def _workers(members: Iterable[Replica]) -> int:
    return sum(replica.procs for replica in members)


def start_members(job: JobState, world: World) -> None:
    """Order a new attempt of every member of a world whose store is open, ranked by role, replica, local rank (R3)."""
    members = job.members_of(world)
    job.turn(world, "running")
    world.formed_ns = None
    source = min(members, key=lambda replica: replica.member_since)  # the first of those with the longest membership
    store = job.nodes[world.store_node] if world.store_node is not None else None
    assert store is not None and world.store_port is not None
    rank, world_size = 0, _workers(members)
    role_ranks: dict[str, int] = {}
    role_sizes: dict[str, int] = {}
    first_ranks: dict[ReplicaId, int] = {}
    for replica in members:
        first_ranks[replica.id] = rank
        rank += replica.procs
        role_sizes[replica.id.role] = role_sizes.get(replica.id.role, 0) + replica.procs
    snapshot, world.has_other_nodes = choose(job, world), True
    if snapshot is not None:
        count_samples(world, snapshot.generation, snapshot.step)
    orders: list[StartReplica] = []  # for members whose suspended workers continue
    for i, replica in enumerate(members):
        role = job.role_of(replica.id)
        procs = replica.procs
        assert replica.node is not None
        replica.known_addresses = addresses_for(job, role)
        continues = take_suspended(job, replica)
        before = replica.order.node if replica.order is not None else None
        replica.attempt += 1
        replica.started_ns, replica.step = job.now, -1
        job.set_phase(replica, "starting")
        # Outside a gang the role rank is fixed: the other replicas know it, and do not restart with this one.
        role_rank = role_ranks.get(role.spec.name, 0) if role.spec.gang else replica.id.index * procs
        role_ranks[role.spec.name] = role_rank + procs
        replica.order = StartReplica(
            node=replica.node,
            replica=replica.id,
            attempt=replica.attempt,
            world=world.name,
            generation=world.generation,
            rank=first_ranks[replica.id],
            world_size=world_size,
            group_rank=i,
            group_world_size=len(members),
            role_rank=role_rank,
            role_world_size=role_sizes[role.spec.name] if role.spec.gang else role.target * procs,
            source_rank=first_ranks[source.id],
            master_addr=store.address,
            master_port=world.store_port,
            gpus=replica.gpus,
            addresses=replica.known_addresses,
            snapshot=snapshot,
        )
        note_start(job, replica, world, before, continues)
        if continues:
            orders.append(replica.order)
        else:
            job.emit(replica.order)  # new workers first, because they take longest to start
    world.has_state = bool(orders)
    for order in orders:
        job.emit(order)


def abandon_openings(job: JobState, names: Iterable[WorldName]) -> None:
    """Let those of the worlds that open wait and choose members anew, since a seat is lost; close their stores."""
    for name in job.in_order(dict.fromkeys(names)):
        if job.worlds[name].phase == "opening":
            close_store(job, job.worlds[name])
            job.turn(job.worlds[name], "waiting")


def note_formed(job: JobState, world: World) -> None:
    """Record now as the time at which the generation formed, unless a replica of the world still starts or stops."""
    if not world.counts["starting"] and not world.counts["stopping"]:
        world.formed_ns = job.now


def _grow(job: JobState, world: World, roles: list[Role]) -> None:
    """Seat further replicas of a running gang below its target, and open one incident that re-forms it (R13).

    It waits for the cool-down, and a restart's back-off. Nodes that still import what workers need are left out, so
    that present members do not wait for the imports.
    """
    cooldown = Due("cooldown", world.name)
    busy = world.incident is not None or world.formed_ns is None or world.notice is not None
    growing = [role for role in roles if role.seats < role.target]
    if busy or world.is_closing or not growing:
        job.due.clear(cooldown)
        return
    for role in growing:
        job.unsatisfied[role.spec.name] = None
    if not any(has_room(job, role, role.spec.step, job.warming) for role in growing):
        job.due.clear(cooldown)
        return
    worlds = closure(job, [world.name])
    earliest = max(_may_grow_from(job, roles, world), backs_off_until(job, worlds))
    if job.now < earliest:
        job.due.set(cooldown, earliest)
        return
    job.due.clear(cooldown)
    kind = "scaled" if world.grow_at_once else "joined"
    if not sum(fill(job, role, role.target - role.seats, without=job.warming) for role in growing):
        return
    before = frozenset(world.members)
    names = [str(replica.id) for role in roles for replica in seated(job, role) if replica.id not in before]
    reason = f"room for {', '.join(names)}"
    open_incident(job, kind, names[0], reason, FREE, worlds)


def _may_grow_from(job: JobState, roles: list[Role], world: World) -> int:
    """Return the time (ns) from which a running gang may grow: now if the operator scaled up, else after a wait."""
    assert world.formed_ns is not None
    if world.grow_at_once:
        return job.now
    cooldown_ns = max(role.spec.cooldown_ns for role in roles)
    healthy, is_first = was_healthy(job, world), world.generation == 1
    return world.formed_ns + growth_wait_ns(
        cooldown_ns, world.free_row, job.graph.options, healthy=healthy, is_first=is_first
    )
