"""Placement of replicas on nodes: the functions that give seats and take them back.

Replicas are placed in the order of the graph, each on the best node for its role (`chooser.py`). A replica keeps its
seat until it has ended for good, its node is lost or left, or it has failed too often there (R22). A role that restarts
therefore never loses its seats to a role that grows (R2).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable

from flowdist.control.job.state import OVER_PHASES, JobState, Node, Replica, Role
from flowdist.control.placement.amounts import free_text, need_text
from flowdist.control.placement.chooser import Chooser, Seat, Trial, candidate, refusal
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.control.rules.bad_nodes import recent, repeated
from flowdist.graph import RoleSpec
from flowdist.graph.capacity import Capacity, add, moments, offered, pick, slots, subtract, without


def place(job: JobState, replica: Replica, name: NodeName) -> None:
    """Give a replica without a seat one on the node, with GPUs that are free there, and subtract its need there.

    The replica keeps its ports if they were chosen on this node. The caller has made sure that it fits.
    """
    assert replica.node is None and not replica.is_live, f"{replica.id} has a place on {replica.node} already"
    node, role = job.nodes[name], job.role_of(replica.id)
    replica.gpus = pick(role.need, node.free)
    role.unseated[replica.phase] -= 1
    role.seated[replica.phase] += 1
    role.seats += 1
    del role.vacant[bisect_left(role.vacant, replica.id.index)]
    replica.node = name
    node.replicas[replica.id] = None
    node.free = subtract(node.free, role.need, replica.gpus)
    if replica.ports_node != name:
        replica.ports, replica.ports_node = (), None
        role.portless[replica.id] = None
    role.stale = job.placement_changed = True
    update_free(job, name)
    job.touch(job.worlds[replica.world])


def unplace(job: JobState, replica: Replica) -> None:
    """Take the seat of the replica away, give back its resources, and end its suspended workers.

    Its ports stay recorded: if the replica is placed on the same node again, it keeps them. A replica without a seat is
    left alone.
    """
    if replica.node is None:
        return
    job.dismiss(replica)
    role, node = job.role_of(replica.id), job.nodes[replica.node]
    role.seated[replica.phase] -= 1
    role.unseated[replica.phase] += 1
    role.seats -= 1
    node.replicas.pop(replica.id, None)
    node.free = _given_back(node, node.free, role, replica.gpus)
    name, replica.node, replica.gpus = replica.node, None, ()
    role.portless.pop(replica.id, None)
    if replica.phase not in OVER_PHASES:
        insort(role.vacant, replica.id.index)
    if not role.spec.gang:
        job.unsatisfied[role.spec.name] = None  # another replica of the role may take the seat
    role.stale = job.placement_changed = True
    update_free(job, name)
    job.touch(job.worlds[replica.world])


def forget_ports(replica: Replica) -> None:
    """Forget the ports of a replica without a seat; called when the agent that chose them is lost."""
    replica.ports, replica.ports_node = (), None


def takes_more(node: Node) -> bool:
    """Return whether replicas may be placed on the node: it is usable, not cordoned, and does not stand still."""
    return node.usable and not node.is_avoided


def update_free(job: JobState, name: NodeName) -> None:
    """Renew the entries of the node in `job.free` and in every candidate index, and note that placement has changed.

    Call after each change of the node's free capacity, replicas, cordon or use. A node that is not usable, or is
    cordoned, is in none of them.
    """
    node = job.nodes[name]
    if takes_more(node):
        job.free[name] = node.free
    else:
        job.free.pop(name, None)
    for candidates in job.candidate_indexes:
        candidates.put(name, candidate(job, candidates, name, job.free.get(name)))
    job.placement_changed = True


def fill(job: JobState, role: Role, count: int, *, without: Collection[NodeName] = ()) -> int:
    """Give seats to up to `count` waiting replicas of the role, the lowest index first.

    Seats that the minima of other roles need are not taken (R2). Seats are given in blocks of `step`: as many as a mesh
    of the role's ranks needs, one at a time if the role has no mesh. If fewer than `count` are placed although a
    replica waits, the role is marked as unsatisfied, and tries again when placement changes.

    Args:
        job: The state.
        role: The role.
        count: The largest number of seats to give.
        without: Nodes that take nothing.

    Returns:
        How many replicas were placed.
    """
    if count <= 0 or not role.vacant:
        return 0
    placed = passed = 0
    wanting = False
    short = _short_roles(job, role)
    trial: Trial = dict.fromkeys(without)
    chooser = Chooser(job, role, trial)
    block = role.spec.step - role.seats % role.spec.step
    while placed + block <= count and passed < len(role.vacant):
        replica = job.replicas[role.replicas[role.vacant[passed]]]
        if replica.phase != "waiting":
            passed += 1
            continue
        wanting = True
        seats = _choose_block(job, role, chooser, role.vacant[passed : passed + block])
        left = {name: trial[name] for _, name in seats}
        if len(seats) < block or (short and not leaves_room(job, role, left, seats, short)):
            break
        if all(_returns_its_seats(job, role, other) for other in short):
            short = []  # `leaves_room` would be true for every further seat of the role as well
        for chosen, name in seats:
            place(job, job.replicas[chosen], name)
        placed, block = placed + block, role.spec.step
    if wanting and placed < count:
        job.unsatisfied[role.spec.name] = None
    return placed


def _choose_block(job: JobState, role: Role, chooser: Chooser, vacant: Iterable[int]) -> list[Seat]:
    """Choose seats for the replicas of these indexes, in order, and return those found before no node has room.

    The phase of a replica is not checked: in a gang, every replica without a seat is waiting.
    """
    seats: list[Seat] = []
    for index in vacant:
        replica = job.replicas[role.replicas[index]]
        if (name := _take(job, chooser, replica)) is None:
            break
        seats.append((replica.id, name))
    return seats


def _take(job: JobState, chooser: Chooser, replica: Replica) -> NodeName | None:
    """Return the node that the chooser takes for the replica: one that it avoids only if no other has room (R22).

    None if no node has room. The node where its ports were chosen is preferred.
    """
    return chooser.take(replica.ports_node, avoided(job, replica)) or chooser.take(replica.ports_node)


def avoided(job: JobState, replica: Replica) -> list[NodeName]:
    """Return the nodes on which the replica has had `move_after` failures of one kind within the window (R22)."""
    if not replica.failures:
        return []
    options = job.graph.options
    return repeated(recent(replica.failures, job.now, options), options.move_after)


def seated(job: JobState, role: Role) -> list[Replica]:
    """Return the replicas of the role that have a seat, in the order of their indexes."""
    return [replica for replica in job.replicas_of(role) if replica.node is not None]


def admit(job: JobState, roles: Iterable[Role]) -> Role | None:
    """Give seats for the minimum of every role, or no seat at all (R2).

    Returns:
        The first role that does not fit; None if all fit. All that do not fit are marked as unsatisfied.
    """
    trial: Trial = {}
    wanted: list[Seat] = []
    below = [role for role in roles if role.occupied < role.spec.min_replicas]
    short = [role for role in below if not _choose_seats(job, role, trial, wanted, in_full=role is not below[-1])]
    for replica, node in wanted if not short else ():
        place(job, job.replicas[replica], node)
    for role in short:
        job.unsatisfied[role.spec.name] = None
    return short[0] if short else None


def short_of_room(
    job: JobState,
    roles: Iterable[Role],
    *,
    without: Collection[NodeName] = (),
    leaving: Collection[ReplicaId] = (),
    extra: int = 0,
) -> Role | None:
    """Return the first role whose minimum finds no room beside the roles before it; None if all fit. No seat is given.

    Args:
        job: The state.
        roles: The roles, in the order in which they take seats.
        without: Nodes that take nothing.
        leaving: Replicas that count as without their present seats, and need other ones.
        extra: If positive, look for so many seats more than each role has, instead of for its minimum.
    """
    trial: Trial = dict.fromkeys(without)
    wanted: list[Seat] = []
    return next((role for role in roles if not _choose_seats(job, role, trial, wanted, leaving, extra)), None)


def _choose_seats(
    job: JobState,
    role: Role,
    trial: Trial,
    wanted: list[Seat],
    leaving: Collection[ReplicaId] = (),
    extra: int = 0,
    in_full: bool = False,
) -> bool:
    """Choose seats for the replicas that the role lacks to its minimum, without giving them. Return whether all fit.

    Args:
        job: The state, which is not changed.
        role: The role.
        trial: Capacity assumed free on some nodes; the chosen seats are subtracted from it.
        wanted: The seats chosen so far; the new ones are appended.
        leaving: Replicas that count as without their present seats, and need other ones.
        extra: If positive, how many seats to choose, instead of those that the minimum lacks.
        in_full: Choose as many seats as fit even if not all do, so that `trial` is right for the roles that follow.
    """
    own = [replica.index for replica in leaving if replica.role == role.spec.name]
    missing = extra or role.spec.min_replicas - role.occupied + len(own)
    if missing <= 0:
        return True
    chooser = Chooser(job, role, trial, wanted)
    if not in_full and chooser.lacks(missing):
        return False
    for index in heapq.merge(role.vacant, sorted(own)):
        if missing <= 0:
            break
        replica = job.replicas[role.replicas[index]]
        if (name := _take(job, chooser, replica)) is None:
            return False
        wanted.append((replica.id, name))
        missing -= 1
    return missing <= 0


def _short_roles(job: JobState, grower: Role) -> list[Role]:
    """Return the unfinished roles other than `grower` that lack seats to their minimum."""
    return [
        role
        for role in job.roles.values()
        if role.outcome is None and role is not grower and role.occupied < role.spec.min_replicas
    ]


def leaves_room(job: JobState, grower: Role, taken: Trial, seats: list[Seat], short: list[Role]) -> bool:
    """Return whether the minima of all `short` roles still find room after `grower` gets these seats (R2).

    A role that finds no room even without the new seats blocks only nodes that could ever take one of its replicas.

    Args:
        job: The state, which is not changed.
        grower: The role that is to get the seats.
        taken: The capacity that the new seats leave on their nodes.
        seats: The new seats.
        short: Roles that lack seats to their minimum.
    """
    while (lacking := _without_room(job, grower, taken, seats, short)) is not None:
        is_for_it = any(_may_ever_take(job.nodes[name], lacking) for _, name in seats)
        if is_for_it or _without_room(job, grower, {}, [], short) is not lacking:
            return False
        short = [role for role in short if role is not lacking]
    return True


def _may_ever_take(node: Node, role: Role) -> bool:
    """Return whether the node, if nothing ran on it, could take a replica of the role: by its labels and its size.

    The rules `near` and `apart` are not looked at.
    """
    labels = dict(node.spec.labels)
    is_allowed = all(labels.get(key) == value for key, value in role.spec.placement.where)
    return is_allowed and slots(role.need, offered(node.spec)) > 0


def _without_room(job: JobState, grower: Role, taken: Trial, seats: list[Seat], short: list[Role]) -> Role | None:
    """Return the first of the `short` roles whose minimum finds no room beside the others; None if all find room.

    A role that starts after the success of others may use their seats, which are free by then. So the room is computed
    once for each set of roles that may have succeeded, and the roles that can start then have to fit together.

    The arguments are those of `leaves_room`. The state is not changed.
    """
    after = {role.spec.name: before_success(job, role.spec) for role in short}
    for gone in moments(after):
        trial = _when_gone(job, gone, taken, grower, seats)
        for role in short:
            if role.spec.name in gone or not after[role.spec.name].keys() <= gone:
                continue
            missing = role.spec.min_replicas - role.occupied
            chooser = Chooser(job, role, trial, seats)
            if chooser.lacks(missing) or not all(chooser.take() is not None for _ in range(missing)):
                return role
    return None


def _when_gone(job: JobState, gone: Collection[str], free: Trial, grower: Role, seats: list[Seat]) -> Trial:
    """Return the free capacity of the nodes once the roles `gone` have succeeded and their seats are free.

    `free` is what the new `seats` of `grower` leave. These seats, too, become free if `grower` is one of `gone`.
    """
    trial = dict(free)
    for name in job.roles if gone else ():  # in the order of the graph, because sets have none
        if name not in gone:
            continue
        for seat, devices in _devices_of(job, grower, seats) if name == grower.spec.name else ():
            _free_up(job, trial, seat, grower, devices)
        for replica in seated(job, job.roles[name]):
            assert replica.node is not None
            _free_up(job, trial, replica.node, job.roles[name], replica.gpus)
    return trial


def _devices_of(job: JobState, role: Role, seats: list[Seat]) -> list[tuple[NodeName, tuple[int, ...]]]:
    """Return the node and the devices that each of these seats gets if they are given in this order."""
    left: dict[NodeName, Capacity] = {}
    found = []
    for _, name in seats:
        free = left.get(name, job.free[name])
        found.append((name, pick(role.need, free)))
        left[name] = subtract(free, role.need, found[-1][1])
    return found


def _free_up(job: JobState, trial: Trial, name: NodeName, role: Role, devices: tuple[int, ...]) -> None:
    """Add the capacity of one seat of the role, with these devices, to the trial, unless the node takes no replicas."""
    left = trial[name] if name in trial else job.free.get(name)
    if left is not None:
        trial[name] = _given_back(job.nodes[name], left, role, devices)


def _given_back(node: Node, left: Capacity, role: Role, devices: tuple[int, ...]) -> Capacity:
    """Return the free capacity `left` plus one seat of the role on these devices. Bad devices offer nothing."""
    return without(add(left, role.need, devices), tuple(node.bad_gpus))


def _returns_its_seats(job: JobState, grower: Role, other: Role) -> bool:
    """Return whether every seat of `grower` is free again before `other` starts: after the success of `grower`.

    False if `other` has a `near` or `apart` rule, because more seats of `grower` may change where `other` fits.
    """
    placement = other.spec.placement
    return grower.spec.name in before_success(job, other.spec) and not placement.near and not placement.apart


def before_success(job: JobState, spec: RoleSpec) -> dict[str, None]:
    """Return the names of the roles that have to succeed before this one starts, and have not ended yet.

    The role never runs beside these. The dict is an ordered set.
    """
    return {name: None for name in job.roles[spec.name].after if job.roles[name].outcome is None}


def explain(job: JobState, role: Role, shown: int = 4) -> str:
    """Return, as text for the user, what a replica of the role needs, and why no node that is up has room for it.

    Args:
        job: The state.
        role: The role.
        shown: How many nodes are named; the others are only counted.
    """
    missing = role.spec.min_replicas - role.occupied
    name = f"{role.spec.name}/{role.vacant[0]}" if role.vacant else role.spec.name
    if missing > 1:
        name = f"{role.spec.name} lacks {missing} replicas to its minimum, each"
    if not job.usable:
        return f"{name} needs {need_text(role.need)}; no node is up"
    parts = []
    for _, n in job.usable[:shown]:
        node = job.nodes[n]
        if node.stands_still:
            parts.append(f"{n} stands still ({node.stands_still} is stopped)")
        if node.cordoned:
            parts.append(f"{n} is cordoned ({node.cordoned})")
        elif refused := refusal(node, role.spec.placement):
            parts.append(f"{n} {refused}")
        else:
            bad = f" (gpu {', '.join(map(str, sorted(node.bad_gpus)))} bad)" if node.bad_gpus and role.need.gpu else ""
            parts.append(f"{n} has {free_text(node.free, offered(node.spec), role.need)} free{bad}")
    others = len(job.usable) - shown
    more = f", and {others} more nodes have too little" if others > 0 else ""
    return f"{name} needs {need_text(role.need)}; {', '.join(parts)}{more}"
