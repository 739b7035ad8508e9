"""Placement of replicas on nodes, each on the best one for its role (`chooser.py`), in the order of the graph.

A replica keeps its seat until it has ended for good, its node is lost or left, or it has failed too often there (R22).
So a role that restarts never loses its seats to one that grows (R2).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import islice
from typing import TypeVar

from flowdist.control.job.state import OVER_PHASES, JobState, Node, Replica, Role
from flowdist.control.placement.chooser import Chooser, Seat, Trial, candidate, refusal
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import WHOLE, JobOptions, RoleSpec, format_memory
from flowdist.graph.capacity import Capacity, Need, add, moments, offered, pick, slots_on, subtract, without

Past = TypeVar(
    "Past", bound=tuple[int, str, object, object]
)  # a failure, such as `PastFailure`: time, kind, replica, node
Place = TypeVar("Place")  # a node; macro mode uses numbers


def place(job: JobState, replica: Replica, name: NodeName) -> None:
    """Give a replica a seat on a node where it fits, with GPUs; it keeps its ports if they were chosen there."""
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
    """Take the replica's seat away, if it has one, with its resources and suspended workers; its ports stay known."""
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


def takes_more(node: Node) -> bool:
    """Return whether replicas may be placed on the node: it is usable, not cordoned, and does not stand still."""
    return node.usable and not node.is_avoided


def update_free(job: JobState, name: NodeName) -> None:
    """Renew the node's entries in `job.free` and all candidate indexes, whenever its room, cordon or use changes."""
    node = job.nodes[name]
    if takes_more(node):
        job.free[name] = node.free
    else:
        job.free.pop(name, None)
    for candidates in job.candidate_indexes:
        candidates.put(name, candidate(job, candidates, name, job.free.get(name)))
    job.placement_changed = True


def fill(job: JobState, role: Role, count: int, *, without: Collection[NodeName] = ()) -> int:
    """Give seats to up to `count` waiting replicas of the role, the lowest index first; return how many got one.

    Seats that the minima of other roles need are not taken (R2). Blocks of `step` are as many as a mesh of its ranks
    needs. If too few are placed although a replica waits, the role is unsatisfied, and tries again at a change.
    """
    if count <= 0 or not role.vacant:
        return 0
    placed = passed = 0
    wanting = False
    short = short_roles(job, job.leaving)
    short.pop(role.spec.name, None)
    chooser = Chooser(job, role, dict.fromkeys(without))
    block = role.spec.step - role.seats % role.spec.step
    while placed + block <= count and passed < len(role.vacant):
        if job.replicas[role.replicas[role.vacant[passed]]].phase != "waiting":
            passed += 1
            continue
        wanting = True
        # In a gang, every replica without a seat waits: the phases of the rest of a block need not be looked at.
        seats = _choose(job, chooser, [role.replicas[index] for index in role.vacant[passed : passed + block]])
        if len(seats) < block or (short and not _leaves_room(job, seats, short)):
            break
        if all(_returns_its_seats(job, role, job.roles[other]) for other in short):
            short = {}  # `_leaves_room` would be true for every further seat of the role as well
        for chosen, name in seats:
            place(job, job.replicas[chosen], name)
        placed, block = placed + block, role.spec.step
    if wanting and placed < count:
        job.unsatisfied[role.spec.name] = None
    return placed


def _choose(job: JobState, chooser: Chooser, replicas: Iterable[ReplicaId]) -> list[Seat]:
    """Choose seats in order, on nodes of known ports if possible, on avoided ones if nothing else has room (R22)."""
    seats: list[Seat] = []
    for name in replicas:
        replica = job.replicas[name]
        node = chooser.take(replica.ports_node, avoided(job, replica)) or chooser.take(replica.ports_node)
        if node is None:
            break
        seats.append((name, node))
    return seats


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
    """Give seats for the minimum of every role, or none (R2); return the first role that does not fit, or None."""
    wanted = {role.spec.name: found for role in roles if (found := _unseated(job, role))}
    seats, lacking = _choose_all(job, wanted)
    if lacking:
        return job.roles[lacking]
    for replica, node in _beside_others(job, wanted, seats) if seats else ():
        place(job, job.replicas[replica], node)
    return None


def _beside_others(job: JobState, wanted: dict[str, list[ReplicaId]], seats: list[Seat]) -> list[Seat]:
    """Return seats for the replicas `wanted` that leave room for the minima of other roles, or `seats` if none do.

    If the best ones do not, those are tried that are best after others have taken theirs. A role with a `near` rule is
    left out: it may be near to seats that others have, not to those they may get.
    """
    given = dict(seats)
    short = {
        name: [each for each in found if each not in given] for name, found in short_roles(job, job.leaving).items()
    }
    rest = {name: found for name, found in short.items() if found}
    if any(job.roles[name].spec.placement.near for name in wanted) or _leaves_room(job, seats, rest):
        return seats
    now = [name for name in rest if name not in wanted and not before_success(job, job.roles[name].spec)]
    for count in range(1, len(now) + 1):
        chosen, _ = _choose_all(job, {name: rest[name] for name in now[:count]} | wanted)
        own = [seat for seat in chosen if seat[0] in given]
        if len(own) == len(seats) and _leaves_room(job, own, rest):
            return own
    return seats


def short_of_room(job: JobState, roles: Iterable[Role]) -> Role | None:
    """Return the first role whose minimum, taken in this order, finds no room; None if all fit. No seat is given."""
    _, lacking = _choose_all(job, {role.spec.name: _unseated(job, role) for role in roles})
    return job.roles[lacking] if lacking else None


def has_room(job: JobState, role: Role, count: int, without: Collection[NodeName]) -> bool:
    """Return whether `count` more replicas of the role find room on other nodes than those of `without`."""
    more = [role.replicas[index] for index in role.vacant[:count]]
    seats, _ = _choose_all(job, {role.spec.name: more}, dict.fromkeys(without))
    return len(seats) == count


def _choose_all(
    job: JobState, wanted: dict[str, list[ReplicaId]], trial: Trial | None = None, taken: Collection[Seat] = ()
) -> tuple[list[Seat], str]:
    """Choose seats for replicas of several roles, role by role, without giving them; name the first that does not fit.

    The seats are subtracted from `trial`, in which those `taken` are already.
    """
    trial = {} if trial is None else trial
    seats: list[Seat] = []
    for name, replicas in wanted.items():
        chooser = Chooser(job, job.roles[name], trial, [*taken, *seats])
        found = [] if chooser.lacks(len(replicas)) else _choose(job, chooser, replicas)
        seats += found
        if len(found) < len(replicas):
            return seats, name
    return seats, ""


def _unseated(job: JobState, role: Role, leaving: Collection[NodeName] = ()) -> list[ReplicaId]:
    """Return the replicas that need a seat for the role's minimum, lowest first; those on `leaving` need another."""
    own = [each.index for name in leaving for each in job.nodes[name].replicas if each.role == role.spec.name]
    missing = role.spec.min_replicas - role.occupied + len(own)
    if missing <= 0:
        return []
    return [role.replicas[index] for index in islice(heapq.merge(role.vacant, sorted(own)), missing)]


def short_roles(job: JobState, leaving: Collection[NodeName]) -> dict[str, list[ReplicaId]]:
    """Return the replicas that need a seat before each unfinished role has its minimum, by role; see `_unseated`."""
    roles = [role for role in job.roles.values() if role.outcome is None]
    return {role.spec.name: found for role in roles if (found := _unseated(job, role, leaving))}


def _leaves_room(job: JobState, seats: list[Seat], short: dict[str, list[ReplicaId]]) -> bool:
    """Return whether the replicas `short` of other roles still find room after these seats are given (R2).

    A role without room even without them blocks only nodes that could ever take one of its replicas.
    """
    while lacking := without_room(job, short, seats):
        # the node, if nothing ran on it, could take a replica of the role; `near` and `apart` are not looked at
        is_for_it = any(slots_on(job.roles[lacking].spec, job.nodes[name].spec) for _, name in seats)
        if is_for_it or without_room(job, short) != lacking:
            return False
        short = {name: found for name, found in short.items() if name != lacking}
    return True


def without_room(
    job: JobState, short: dict[str, list[ReplicaId]], seats: Collection[Seat] = (), without: Collection[NodeName] = ()
) -> str:
    """Return the first of these roles whose minimum finds no room beside the others; empty if all find room.

    A role that starts after the success of others may use their seats, so the room is computed for each set of roles
    that may have succeeded. Replicas `short` need seats, others get `seats`, and nodes `without` take nothing.
    """
    after = {name: before_success(job, job.roles[name].spec) for name in short}
    for gone in moments(after):
        now = {name: short[name] for name in short if name not in gone and after[name].keys() <= gone}
        taken = [seat for seat in seats if seat[0].role not in gone]
        _, lacking = _choose_all(job, now, _when_gone(job, gone, seats, without), taken)
        if lacking:
            return lacking
    return ""


def _when_gone(job: JobState, gone: Collection[str], seats: Collection[Seat], without: Collection[NodeName]) -> Trial:
    """Return the free capacity of nodes, with `seats` given, once the roles `gone` have succeeded and left theirs."""
    trial: Trial = dict.fromkeys(without)
    given: list[tuple[NodeName, Role, tuple[int, ...]]] = []
    for replica, name in seats:
        role, free = job.role_of(replica), trial.get(name) or job.free[name]
        given.append((name, role, pick(role.need, free)))
        trial[name] = subtract(free, role.need, given[-1][2])
    for seat in given:
        if seat[1].spec.name in gone:
            _free_up(job, trial, *seat)
    for role in job.roles.values() if gone else ():  # in the order of the graph, because sets have none
        for each in seated(job, role) if role.spec.name in gone else ():
            assert each.node is not None
            _free_up(job, trial, each.node, role, each.gpus)
    return trial


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

    False with a `near` or `apart` rule, because more seats of `grower` may change where `other` fits.
    """
    placement = other.spec.placement
    return grower.spec.name in before_success(job, other.spec) and not placement.near and not placement.apart


def before_success(job: JobState, spec: RoleSpec) -> dict[str, None]:
    """Return the roles that have to succeed before this one starts, and have not ended yet, as an ordered set."""
    return {name: None for name in job.roles[spec.name].after if job.roles[name].outcome is None}


def explain(job: JobState, role: Role, without: NodeName = "", shown: int = 4) -> str:
    """Return, as text for the user, what a replica of the role needs, and why no node that is up has room for it.

    `without` counts as cordoned, because it is to be drained. At most `shown` nodes are named, the others are counted.
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
        elif cordoned := node.cordoned or ("to be drained" if n == without else ""):
            parts.append(f"{n} is cordoned ({cordoned})")
        elif refused := refusal(node, role.spec.placement):
            parts.append(f"{n} {refused}")
        else:
            bad = f" (gpu {', '.join(map(str, sorted(node.bad_gpus)))} bad)" if node.bad_gpus and role.need.gpu else ""
            parts.append(f"{n} has {free_text(node.free, offered(node.spec), role.need)} free{bad}")
    others = len(job.usable) - shown
    more = f", and {others} more nodes have too little" if others > 0 else ""
    return f"{name} needs {need_text(role.need)}; {', '.join(parts)}{more}"


def recent(failures: Iterable[Past], now: int, options: JobOptions) -> list[Past]:
    """Return the failures that still count: those less than `bad_node_window_ns` before `now` (ns)."""
    since = now - options.bad_node_window_ns
    return [past for past in failures if past[0] > since]


def repeated(failures: Iterable[tuple[int, str, object, Place]], least: int) -> list[Place]:
    """Return the nodes on which at least `least` of these failures are of one and the same kind."""
    counts = Counter((node, kind) for _, kind, _, node in failures)
    return [node for (node, _), count in counts.items() if count >= least]


def need_text(need: Need) -> str:
    """Return the resources that the need asks for, as in `2 cpu, 0.5 gpu`; `nothing` if it asks for none."""
    parts = [f"{_amount('cpu', need.mcpu)} cpu"] if need.mcpu else []
    parts += [f"{need.gpu} gpu" if need.share == WHOLE else f"{need.share / WHOLE:g} gpu"] if need.gpu else []
    parts += [f"{_amount('memory', need.memory)} memory"] if need.memory else []
    return ", ".join(parts) or "nothing"


def free_text(free: Capacity, total: Capacity, like: Need) -> str:
    """Return how much is free of each resource that `like` asks for, as in `0 of 2 gpu`; `room` if it asks for none.

    If some resources do not suffice for `like`, only those are named.
    """
    asked = {
        "cpu": (like.mcpu, free.mcpu, total.mcpu),
        "gpu": (like.gpu, free.devices.count(WHOLE), len(total.devices)),
        "memory": (like.memory, free.memory, total.memory),
    }
    if like.share < WHOLE:  # a share has to fit on one device, so that the sum over all devices would mislead
        asked["gpu"] = (like.share, max(free.devices, default=0), WHOLE)
    wanted = {unit: amounts for unit, amounts in asked.items() if amounts[0]}
    lacking = {unit: amounts for unit, amounts in wanted.items() if amounts[1] < amounts[0]}
    parts = [_part(unit, have, of, like) for unit, (_, have, of) in (lacking or wanted).items()]
    return ", ".join(parts) or "room"


def _part(unit: str, have: int, of: int, like: Need) -> str:
    if unit == "gpu" and like.share < WHOLE:
        return f"at most {have / WHOLE:g} of one gpu"
    return f"{_amount(unit, have)} of {_amount(unit, of)} {unit}"


def _amount(unit: str, value: int) -> str:
    value = max(value, 0)
    return f"{value / 1000:g}" if unit == "cpu" else f"{value}" if unit == "gpu" else format_memory(value)
