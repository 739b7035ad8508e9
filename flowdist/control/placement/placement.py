"""Who runs where.

Replicas are placed in the order of the graph, each on the node with most free slots for its kind (or, packed, with
fewest); ties go to the node that is listed first, whichever joined first, so that a simulation and a real run place
alike. A place is kept until its replica has ended for good, its node is lost, or the replica has failed too often
there (R22): a role that restarts never loses its seats to one that grows (R2).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable

from flowdist.control.job.candidates import Candidate, CandidateIndex
from flowdist.control.job.state import OVER_PHASES, JobState, Node, Replica, Role
from flowdist.control.placement.amounts import free_text, need_text
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import Placement, RoleSpec
from flowdist.graph.capacity import Capacity, add, moments, offered, pick, slots, subtract, without

Trial = dict[NodeName, Capacity | None]  # what nodes would have left if other than what they have; None: nothing
Seat = tuple[ReplicaId, NodeName]


class Chooser:
    """Nodes for the replicas of one role, one after the other. `trial` is kept right.

    `taken` are seats that were chosen and not given yet: their nodes are in the trial. All other nodes come from the
    role's candidates as they are wanted; those of the trial are in a heap, and looked up again when they come up.
    """

    def __init__(self, job: JobState, role: Role, trial: Trial, taken: Iterable[Seat] = ()) -> None:
        self._job, self._role, self._trial = job, role, trial
        self._taken: dict[NodeName, list[str]] = {}
        for replica, node in taken:
            self._taken.setdefault(node, []).append(replica.role)
        self._passed: Candidate | None = None  # on the candidates
        self._heap = [candidate for name in trial if (candidate := self._candidate(name)) is not None]
        heapq.heapify(self._heap)

    def lacks(self, count: int) -> bool:
        """Whether so many will not find nodes, by a glance; asked before any is taken."""
        if self._role.need.is_nothing:
            return False
        tried = sum(abs(found[0]) for name in self._trial if (found := self._role.candidates.get(name)) is not None)
        return self._role.candidates.slots - tried + sum(abs(rank) for rank, _, _ in self._heap) < count

    def take(self, prefer: NodeName | None = None, avoid: Collection[NodeName] = ()) -> NodeName | None:
        """The node for one more replica, or None. `prefer` wins where it fits: its ports are there."""
        if prefer is not None and prefer not in avoid and self._candidate(prefer) is not None:
            return self._give(prefer)
        put_back = []
        found = None
        while found is None and (best := self._next()) is not None:
            candidate = self._candidate(best[2])
            if candidate is None:
                continue
            if candidate != best:
                heapq.heappush(self._heap, candidate)
            elif best[2] in avoid:
                put_back.append(best)
            else:
                found = best[2]
        for entry in put_back:
            heapq.heappush(self._heap, entry)
        return self._give(found) if found is not None else None

    def _next(self) -> Candidate | None:
        """The best of those that were not looked at yet."""
        fresh = self._role.candidates.after(self._passed)
        while fresh is not None and fresh[2] in self._trial:
            self._passed = fresh
            fresh = self._role.candidates.after(fresh)
        if self._heap and (fresh is None or self._heap[0] < fresh):
            return heapq.heappop(self._heap)
        self._passed = fresh or self._passed
        return fresh

    def _give(self, name: NodeName) -> NodeName:
        free = self._left(name)
        assert free is not None
        self._trial[name] = subtract(free, self._role.need)
        self._taken.setdefault(name, []).append(self._role.spec.name)
        candidate = self._candidate(name)
        if candidate is not None:
            heapq.heappush(self._heap, candidate)
        return name

    def _left(self, name: NodeName) -> Capacity | None:
        return self._trial[name] if name in self._trial else self._job.free.get(name)

    def _candidate(self, name: NodeName) -> Candidate | None:
        return candidate(self._job, self._role.candidates, name, self._left(name), self._taken.get(name, ()))


def candidate(
    job: JobState, candidates: CandidateIndex, name: NodeName, free: Capacity | None, taken: Collection[str] = ()
) -> Candidate | None:
    """The node, with so much left, as a candidate for the candidates; None when it is none."""
    if free is None or (candidates.is_picky and refusal(job.nodes[name], candidates.placement, taken)):
        return None
    count = slots(candidates.need, free)
    if count < 1:
        return None
    return (count if candidates.placement.strategy == "pack" else -count), job.nodes[name].order, name


def refusal(node: Node, placement: Placement, taken: Collection[str] = ()) -> str:
    """Why the placement does not allow the node, whatever room there is; empty when it does.

    `taken` are the roles of replicas that are about to be there.
    """
    if not (placement.where or placement.near or placement.apart):
        return ""
    labels = dict(node.spec.labels)
    for key, value in placement.where:
        if labels.get(key) != value:
            return f"is not {key}={value}"
    there = {replica.role for replica in node.replicas} | set(taken)
    for role in placement.near:
        if role not in there:
            return f"has no {role}"
    for role in placement.apart:
        if role in there:
            return f"has a {role} already"
    return ""


def place(job: JobState, replica: Replica, name: NodeName) -> None:
    """Give the replica its seat, with GPUs that are free there."""
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
    """Take the seat away. What the replica told of its ports stays, for the case that it comes back there."""
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
        job.unsatisfied[role.spec.name] = None  # the seat may be for another of it, who has asked for none so far
    role.stale = job.placement_changed = True
    update_free(job, name)
    job.touch(job.worlds[replica.world])


def forget_ports(replica: Replica) -> None:
    """Its agent is gone, and with it the ports that it had chosen. Its seat is gone, too."""
    replica.ports, replica.ports_node = (), None


def takes_more(node: Node) -> bool:
    return node.usable and not node.cordoned


def update_free(job: JobState, name: NodeName) -> None:
    """Keep right what the node offers: how much it has left, and whose candidates it is on."""
    node = job.nodes[name]
    if takes_more(node):
        job.free[name] = node.free
    else:
        job.free.pop(name, None)
    for candidates in job.candidate_indexes:
        candidates.put(name, candidate(job, candidates, name, job.free.get(name)))
    job.placement_changed = True


def fill(job: JobState, role: Role, count: int, *, without: Collection[NodeName] = ()) -> int:
    """Place up to `count` of the replicas that wait, lowest first, beyond the minima of roles that are yet to come.

    Nodes `without` take nothing.
    Returns how many found a place; the role is unsatisfied if there were any, and not so many did. Seats are given by
    as many as a mesh of the role's ranks needs, one by one where it has none.
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
            short = []  # what holds for one of its seats holds for all
        for chosen, name in seats:
            place(job, job.replicas[chosen], name)
        placed, block = placed + block, role.spec.step
    if wanting and placed < count:
        job.unsatisfied[role.spec.name] = None
    return placed


def _choose_block(job: JobState, role: Role, chooser: Chooser, vacant: Iterable[int]) -> list[Seat]:
    """A seat for each of these; fewer when there are no more. Of a gang that forms or grows all who have none wait."""
    seats: list[Seat] = []
    for index in vacant:
        replica = job.replicas[role.replicas[index]]
        name = chooser.take(replica.ports_node, avoided(job, replica)) or chooser.take(replica.ports_node)
        if name is None:
            break
        seats.append((replica.id, name))
    return seats


def avoided(job: JobState, replica: Replica) -> list[NodeName]:
    """Nodes on which the replica has failed so often in one way that it should run elsewhere (R22)."""
    if not replica.failures:
        return []
    since = job.now - job.graph.options.bad_node_window_ns
    counts = Counter((failure.node, failure.kind) for failure in replica.failures if failure.at_ns > since)
    return [node for (node, _), count in counts.items() if count >= job.graph.options.move_after]


def seated(job: JobState, role: Role) -> list[Replica]:
    return [replica for replica in job.replicas_of(role) if replica.node is not None]


def admit(job: JobState, roles: Iterable[Role]) -> Role | None:
    """Seat the minimum of every role, in order. Returns the first that does not fit: then no seat is taken."""
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
    """The first role whose minimum would not fit together with those before it; nothing is changed.

    Nodes `without` take nothing; `leaving` lose the seats that they have. With `extra`, so many seats are wanted beyond
    those that there are.
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
    """Choose what is missing to the role's minimum, in `trial`, which is changed. False when there is no room.

    Where that can be seen at a glance nothing is chosen, unless `in_full`: a role after it is to find what is left.
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
        name = chooser.take(replica.ports_node, avoided(job, replica)) or chooser.take(replica.ports_node)
        if name is None:
            return False
        wanted.append((replica.id, name))
        missing -= 1
    return missing <= 0


def _short_roles(job: JobState, grower: Role) -> list[Role]:
    return [
        role
        for role in job.roles.values()
        if role.outcome is None and role is not grower and role.occupied < role.spec.min_replicas
    ]


def leaves_room(job: JobState, grower: Role, taken: Trial, seats: list[Seat], short: list[Role]) -> bool:
    """Whether the minima of the roles that are yet to come could still be seated with these more `seats` of `grower`.

    `taken` is what they leave of their nodes. A role that finds no room without them either holds up nobody on nodes
    that are nothing for it.
    """
    while (lacking := _without_room(job, grower, taken, seats, short)) is not None:
        is_for_it = any(_may_ever_take(job.nodes[name], lacking) for _, name in seats)
        if is_for_it or _without_room(job, grower, {}, [], short) is not lacking:
            return False
        short = [role for role in short if role is not lacking]
    return True


def _may_ever_take(node: Node, role: Role) -> bool:
    """With nothing else on it, and whoever its neighbours are."""
    labels = dict(node.spec.labels)
    is_allowed = all(labels.get(key) == value for key, value in role.spec.placement.where)
    return is_allowed and slots(role.need, offered(node.spec)) > 0


def _without_room(job: JobState, grower: Role, taken: Trial, seats: list[Seat], short: list[Role]) -> Role | None:
    """The first of these roles whose minimum finds no room beside the others.

    A role that waits for others to succeed may count on their seats: they are gone by then. Whoever can start by then
    comes with it, unless it waits for the role itself.
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
    """What is left when these roles have succeeded; `seats` are those that `grower` is about to be given."""
    trial = dict(free)
    for name in job.roles if gone else ():  # in order: sets have none
        if name not in gone:
            continue
        for seat, devices in _devices_of(job, grower, seats) if name == grower.spec.name else ():
            _free_up(job, trial, seat, grower, devices)
        for replica in seated(job, job.roles[name]):
            assert replica.node is not None
            _free_up(job, trial, replica.node, job.roles[name], replica.gpus)
    return trial


def _devices_of(job: JobState, role: Role, seats: list[Seat]) -> list[tuple[NodeName, tuple[int, ...]]]:
    """The node and the devices of each of these seats, when they are given one after the other."""
    left: dict[NodeName, Capacity] = {}
    found = []
    for _, name in seats:
        free = left.get(name, job.free[name])
        found.append((name, pick(role.need, free)))
        left[name] = subtract(free, role.need, found[-1][1])
    return found


def _free_up(job: JobState, trial: Trial, name: NodeName, role: Role, devices: tuple[int, ...]) -> None:
    """One seat of the role, with those devices, is free, if its node takes more at all."""
    left = trial[name] if name in trial else job.free.get(name)
    if left is not None:
        trial[name] = _given_back(job.nodes[name], left, role, devices)


def _given_back(node: Node, left: Capacity, role: Role, devices: tuple[int, ...]) -> Capacity:
    """What is left when a replica of the role gives its seat back; of devices that are bad nothing is."""
    return without(add(left, role.need, devices), tuple(node.bad_gpus))


def _returns_its_seats(job: JobState, grower: Role, other: Role) -> bool:
    """Whether the other role waits for `grower` to succeed, and does not care who is on a node."""
    placement = other.spec.placement
    return grower.spec.name in before_success(job, other.spec) and not placement.near and not placement.apart


def before_success(job: JobState, spec: RoleSpec) -> dict[str, None]:
    """The unfinished roles that have to succeed before this one can start: never alive at the same time as it."""
    return {name: None for name in job.roles[spec.name].after if job.roles[name].outcome is None}


def explain(job: JobState, role: Role, shown: int = 4) -> str:
    """Why one more replica of the role finds no place, node by node."""
    missing = role.spec.min_replicas - role.occupied
    name = f"{role.spec.name}/{role.vacant[0]}" if role.vacant else role.spec.name
    if missing > 1:
        name = f"{role.spec.name} lacks {missing} replicas to its minimum, each"
    if not job.usable:
        return f"{name} needs {need_text(role.need)}; no node is up"
    parts = []
    for _, n in job.usable[:shown]:
        node = job.nodes[n]
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
