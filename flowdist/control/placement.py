"""Who runs where.

Replicas are placed in the order of the graph, each on the node with most free slots for its kind (or, packed, with
fewest); ties go to the node that is listed first, whichever joined first, so that a simulation and a real run place
alike. A place is kept until its replica has ended for good, its node is lost, or the replica has failed too often
there (R22): a role that restarts never loses its seats to one that grows (R2).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from flowdist.control.ids import NodeName, ReplicaId
from flowdist.control.state import JobState, Node, Replica, Role
from flowdist.graph import Capacity, RoleSpec, add, fits, format_memory, offered, slots, subtract

Free = dict[NodeName, Capacity]
Seat = tuple[ReplicaId, NodeName]


class Chooser:
    """Nodes for the replicas of one role, one after the other, out of `free`, which is kept right.

    `taken` are seats that were chosen and not given yet. A heap of the candidates makes it cheap among many nodes;
    what the heap says of a node is looked up again when the node comes up.
    """

    def __init__(self, job: JobState, role: Role, free: Free, taken: Iterable[Seat] = ()) -> None:
        self._job, self._role, self._free = job, role, free
        self._packs = role.spec.placement.strategy == "pack"
        self._taken: dict[NodeName, list[str]] = {}
        for replica, node in taken:
            self._taken.setdefault(node, []).append(replica.role)
        self._heap = [(self._rank(name), job.nodes[name].order, name) for name in free if self._admits(name)]
        heapq.heapify(self._heap)

    def take(self, prefer: NodeName | None = None, avoid: Collection[NodeName] = ()) -> NodeName | None:
        """The node for one more replica, or None. `prefer` wins where it fits: its ports are there."""
        if prefer is not None and prefer in self._free and prefer not in avoid and self._admits(prefer):
            return self._give(prefer)
        put_back = []
        found = None
        while self._heap and found is None:
            rank, order, name = heapq.heappop(self._heap)
            if not self._admits(name):
                continue
            if rank != self._rank(name):
                heapq.heappush(self._heap, (self._rank(name), order, name))
            elif name in avoid:
                put_back.append((rank, order, name))
            else:
                found = name
        for entry in put_back:
            heapq.heappush(self._heap, entry)
        return self._give(found) if found is not None else None

    def _give(self, name: NodeName) -> NodeName:
        self._free[name] = subtract(self._free[name], self._role.need)
        self._taken.setdefault(name, []).append(self._role.spec.name)
        if self._admits(name):
            heapq.heappush(self._heap, (self._rank(name), self._job.nodes[name].order, name))
        return name

    def _rank(self, name: NodeName) -> int:
        count = slots(self._role.need, self._free[name])
        return count if self._packs else -count

    def _admits(self, name: NodeName) -> bool:
        return fits(self._role.need, self._free[name]) and not self.refusal(name)

    def refusal(self, name: NodeName) -> str:
        """Why the role's placement does not allow the node, whatever room there is; empty when it does."""
        placement = self._role.spec.placement
        if not (placement.where or placement.near or placement.apart):
            return ""
        node = self._job.nodes[name]
        labels = dict(node.spec.labels)
        for key, value in placement.where:
            if labels.get(key) != value:
                return f"is not {key}={value}"
        there = {replica.role for replica in node.replicas} | set(self._taken.get(name, ()))
        for role in placement.near:
            if role not in there:
                return f"has no {role}"
        for role in placement.apart:
            if role in there:
                return f"has a {role} already"
        return ""


def place(job: JobState, replica: Replica, name: NodeName) -> None:
    """Give the replica its seat, with the lowest GPUs that are free there."""
    assert replica.node is None and not replica.is_live, f"{replica.id} has a place on {replica.node} already"
    node, role = job.nodes[name], job.role_of(replica.id)
    taken = [gpu for other in node.replicas for gpu in job.replicas[other].gpus]
    taken += [gpu for gpus in node.stuck.values() for gpu in gpus]
    replica.gpus = tuple(gpu for gpu in range(node.spec.gpu) if gpu not in taken)[: role.spec.resources.gpu]
    role.unseated[replica.phase] -= 1
    role.seated[replica.phase] += 1
    role.seats += 1
    replica.node = name
    node.replicas[replica.id] = None
    node.free = subtract(node.free, role.need)
    if replica.ports_node != name:
        replica.ports, replica.ports_node = (), None
        role.portless[replica.id] = None
    role.stale = job.reseated = True
    update_free(job, name)
    job.touch(job.worlds[replica.world])


def unplace(job: JobState, replica: Replica) -> None:
    """Take the seat away. What the replica told of its ports stays, for the case that it comes back there."""
    if replica.node is None:
        return
    role, node = job.role_of(replica.id), job.nodes[replica.node]
    role.seated[replica.phase] -= 1
    role.unseated[replica.phase] += 1
    role.seats -= 1
    node.replicas.pop(replica.id, None)
    node.free = add(node.free, role.need)
    name, replica.node, replica.gpus = replica.node, None, ()
    role.portless.pop(replica.id, None)
    role.stale = job.reseated = True
    update_free(job, name)
    job.touch(job.worlds[replica.world])


def forget_ports(replica: Replica) -> None:
    """Its agent is gone, and with it the ports that it had chosen. Its seat is gone, too."""
    replica.ports, replica.ports_node = (), None


def takes_more(node: Node) -> bool:
    return node.usable and not node.cordoned


def update_free(job: JobState, name: NodeName) -> None:
    """Keep `job.free` right: the nodes that take more, in their order, with what they have left."""
    node = job.nodes[name]
    if not takes_more(node):
        job.free.pop(name, None)
    elif name in job.free:
        job.free[name] = node.free
    else:
        last = next(reversed(job.free), None)
        job.free[name] = node.free
        if last is not None and job.nodes[last].order > node.order:
            job.free = dict(sorted(job.free.items(), key=lambda item: job.nodes[item[0]].order))
    job.reseated = True


def fill(job: JobState, role: Role, replicas: Iterable[Replica], count: int) -> int:
    """Place up to `count` of the given replicas, lowest first, beyond the minima of roles that are yet to come.

    Returns how many found a place; the role is hungry if not all did.
    """
    placed = 0
    short = _short_roles(job, role)
    free = dict(job.free)
    chooser = Chooser(job, role, free)
    for replica in replicas:
        if placed >= count:
            break
        name = chooser.take(replica.ports_node, avoided(job, replica)) or chooser.take(replica.ports_node)
        if name is None or (short and not leaves_room(job, dict(free), role, name, short)):
            break
        place(job, replica, name)
        placed += 1
    if placed < count:
        job.hungry[role.spec.name] = None
    return placed


def avoided(job: JobState, replica: Replica) -> list[NodeName]:
    """Nodes on which the replica has failed so often in one way that it should run elsewhere (R22)."""
    since = job.now - job.graph.options.bad_node_window_ns
    counts = Counter((failure.node, failure.kind) for failure in replica.failures if failure.at_ns > since)
    return [node for (node, _), count in counts.items() if count >= job.graph.options.move_after]


def seated(job: JobState, role: Role) -> list[Replica]:
    return [replica for replica in job.replicas_of(role) if replica.node is not None]


def admit(job: JobState, roles: Iterable[Role]) -> list[Role]:
    """Seat the minimum of every role, in order; returns the roles that do not fit. Seats are only taken if all fit."""
    free = dict(job.free)
    wanted: list[Seat] = []
    short = [role for role in roles if not _choose_seats(job, role, free, wanted)]
    if not short:
        for replica, node in wanted:
            place(job, job.replicas[replica], node)
    for role in short:
        job.hungry[role.spec.name] = None
    return short


def short_of_room(
    job: JobState, free: Free, roles: Iterable[Role], *, leaving: Collection[ReplicaId] = (), extra: int = 0
) -> list[Role]:
    """The roles whose minima would not fit together in `free`; nothing is changed.

    `leaving` lose the seats that they have. With `extra`, so many seats are wanted beyond those that there are.
    """
    trial = dict(free)
    wanted: list[Seat] = []
    return [role for role in roles if not _choose_seats(job, role, trial, wanted, leaving, extra)]


def _choose_seats(
    job: JobState,
    role: Role,
    free: Free,
    wanted: list[Seat],
    leaving: Collection[ReplicaId] = (),
    extra: int = 0,
) -> bool:
    """Choose what is missing to the role's minimum, in `free`, which is changed. False when there is no room."""
    missing = extra or role.spec.min_replicas - role.occupied + sum(r.role == role.spec.name for r in leaving)
    if missing <= 0:
        return True
    chooser = Chooser(job, role, free, wanted)
    for replica in job.replicas_of(role):
        if missing <= 0:
            break
        has_seat = replica.node is not None or replica.phase in ("succeeded", "ended")
        if has_seat and replica.id not in leaving:
            continue
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


def leaves_room(job: JobState, free: Free, grower: Role, seat: NodeName, short: list[Role]) -> bool:
    """Whether the minima of the roles that are yet to come could still be seated with one more `seat` of `grower`.

    A role that waits for others to succeed may count on their seats: they are gone by then.
    """
    for role in short:
        missing = role.spec.min_replicas - role.occupied
        trial = dict(free)
        earlier = before_success(job, role.spec)
        if grower.spec.name in earlier:
            trial[seat] = add(trial[seat], grower.need)
        for name in earlier:
            for replica in seated(job, job.roles[name]):
                if replica.node in trial:
                    trial[replica.node] = add(trial[replica.node], job.roles[name].need)
        chooser = Chooser(job, role, trial, [(ReplicaId(grower.spec.name, 0), seat)])
        if not all(chooser.take() is not None for _ in range(missing)):
            return False
        if not earlier:
            free = trial
    return True


def before_success(job: JobState, spec: RoleSpec) -> dict[str, None]:
    """The unfinished roles that have to succeed before this one can start: never alive at the same time as it."""
    role = job.roles[spec.name]
    gates = [gate for name in [spec.name, *role.upstream] for gate in job.roles[name].spec.gates]
    return {gate.role: None for gate in gates if gate.condition == "succeeded" and job.roles[gate.role].outcome is None}


def explain(job: JobState, role: Role, shown: int = 4) -> str:
    """Why one more replica of the role finds no place, node by node."""
    replica = next((r for r in job.replicas_of(role) if r.node is None and r.phase in ("waiting", "gone")), None)
    name = str(replica.id) if replica is not None else role.spec.name
    missing = role.spec.min_replicas - role.occupied
    if missing > 1:
        name = f"{role.spec.name} lacks {missing} replicas to its minimum, each"
    nodes = [(n, node) for n, node in job.nodes.items() if node.usable]
    nodes.sort(key=lambda item: item[1].order)
    if not nodes:
        return f"{name} needs {_words(role.need)}; no node is up"
    chooser = Chooser(job, role, {n: node.free for n, node in nodes})
    parts = []
    for n, node in nodes[:shown]:
        if node.cordoned:
            parts.append(f"{n} is cordoned ({node.cordoned})")
        elif refusal := chooser.refusal(n):
            parts.append(f"{n} {refusal}")
        else:
            parts.append(f"{n} has {_free_of(node.free, offered(node.spec), role.need)} free")
    more = f", and {len(nodes) - shown} more nodes have too little" if len(nodes) > shown else ""
    return f"{name} needs {_words(role.need)}; {', '.join(parts)}{more}"


def _free_of(free: Capacity, total: Capacity, like: Capacity) -> str:
    """`0 of 2 gpu`; what `like` does not ask for is left out, and what there is enough of too, if something lacks."""
    lacking = [i for i in range(3) if like[i] and free[i] < like[i]]
    shown = lacking or [i for i in range(3) if like[i]]
    return ", ".join(f"{_amount(free, i)} of {_amount(total, i)} {_UNITS[i]}" for i in shown) or "room"


_UNITS = ("cpu", "gpu", "memory")


def _amount(capacity: Capacity, which: int) -> str:
    value = max(capacity[which], 0)
    return f"{value / 1000:g}" if which == 0 else f"{value}" if which == 1 else format_memory(value)


def _words(need: Capacity) -> str:
    """`2 cpu, 1 gpu`; only what is asked for."""
    return ", ".join(f"{_amount(need, i)} {_UNITS[i]}" for i in range(3) if need[i]) or "nothing"


def free_elsewhere(job: JobState, without: Mapping[NodeName, None]) -> Free:
    """What the other nodes have left."""
    return {name: capacity for name, capacity in job.free.items() if name not in without}
