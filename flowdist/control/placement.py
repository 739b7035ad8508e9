"""Who runs where.

Replicas are placed in the order of the graph, each on the node with most free slots for its kind; ties go to the node
that is listed first, whichever joined first, so that a simulation and a real run place alike. A place is kept until its
replica has ended for good or its node is lost: a role that restarts never loses its seats to one that grows (R2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowdist.control.ids import NodeName
from flowdist.control.state import JobState, Replica, Role, free_on
from flowdist.graph import Capacity, RoleSpec, add, fits, format_memory, needed, slots, subtract

Free = dict[NodeName, Capacity]


def free_capacity(job: JobState) -> Free:
    """What every usable node has left, in their order."""
    usable = sorted((node.order, name) for name, node in job.nodes.items() if node.usable)
    return {name: free_on(job, name) for _, name in usable}


def best_node(need: Capacity, free: Mapping[NodeName, Capacity], prefer: NodeName | None = None) -> NodeName | None:
    """The node for one more replica of that size, or None. `prefer` wins where it fits: its ports are there."""
    if prefer in free and prefer is not None and fits(need, free[prefer]):
        return prefer
    best, most = None, 0
    for name, capacity in free.items():
        count = slots(need, capacity) if fits(need, capacity) else 0
        if count > most:
            best, most = name, count
    return best


def place(job: JobState, replica: Replica, node: NodeName) -> None:
    """Give the replica its seat, with the lowest GPUs that are free there."""
    assert replica.node is None and not replica.is_live, f"{replica.id} has a place on {replica.node} already"
    here = job.nodes[node]
    count = job.role_of(replica.id).spec.resources.gpu
    taken = [gpu for other in here.replicas for gpu in job.replicas[other].gpus]
    taken += [gpu for gpus in here.stuck.values() for gpu in gpus]
    replica.gpus = tuple(gpu for gpu in range(here.spec.gpu) if gpu not in taken)[:count]
    replica.node = node
    here.replicas[replica.id] = None
    if replica.ports_node != node:
        replica.ports, replica.ports_node = (), None


def unplace(job: JobState, replica: Replica) -> None:
    """Take the seat away. What the replica told of its ports stays, for the case that it comes back there."""
    if replica.node is not None:
        job.nodes[replica.node].replicas.pop(replica.id, None)
        replica.node, replica.gpus = None, ()


def fill(job: JobState, role: Role, replicas: Iterable[Replica], count: int, free: Free, *, growing: bool) -> int:
    """Place up to `count` of the given replicas, lowest first. Returns how many found a place; `free` is kept right.

    `growing` is for what goes beyond the minimum: it leaves room for the minima of roles that are yet to come.
    """
    need = needed(role.spec.resources)
    placed = 0
    for replica in replicas:
        if placed >= count:
            break
        node = best_node(need, free, prefer=replica.ports_node)
        if node is None:
            break
        rest = {**free, node: subtract(free[node], need)}
        if growing and not leaves_room(job, rest, role, node):
            break
        place(job, replica, node)
        free[node] = rest[node]
        placed += 1
    return placed


def seated(job: JobState, role: Role) -> list[Replica]:
    return [replica for replica in job.replicas_of(role) if replica.node is not None]


def admit(job: JobState, free: Free, roles: Iterable[Role]) -> list[Role]:
    """Seat the minimum of every role, in order; returns the roles that do not fit. Seats are only taken if all fit."""
    trial = dict(free)
    wanted: list[tuple[Replica, NodeName]] = []
    short = [role for role in roles if not _choose_seats(job, role, trial, wanted)]
    if not short:
        for replica, node in wanted:
            place(job, replica, node)
        free.update(trial)
    return short


def short_of_room(job: JobState, free: Free, roles: Iterable[Role]) -> list[Role]:
    """The roles whose minima do not fit together; nothing is changed."""
    trial = dict(free)
    return [role for role in roles if not _choose_seats(job, role, trial, [])]


def _choose_seats(job: JobState, role: Role, free: Free, wanted: list[tuple[Replica, NodeName]]) -> bool:
    """Choose what is missing to the role's minimum, in `free`, which is changed. False when there is no room."""
    missing = role.spec.min_replicas - len(seated(job, role))
    for replica in job.replicas_of(role):
        if missing <= 0:
            break
        if replica.node is not None or replica.phase not in ("waiting", "gone"):
            continue
        node = best_node(needed(role.spec.resources), free, prefer=replica.ports_node)
        if node is None:
            return False
        free[node] = subtract(free[node], needed(role.spec.resources))
        wanted.append((replica, node))
        missing -= 1
    return True


def leaves_room(job: JobState, free: Free, grower: Role, seat: NodeName) -> bool:
    """Whether the minimum of every role that is yet to come could still be seated if `grower` took one more `seat`.

    A role that waits for others to succeed may count on their seats: they are gone by then.
    """
    for role in job.roles.values():
        if role.outcome is not None:
            continue
        missing = role.spec.min_replicas - len(seated(job, role))
        if missing <= 0:
            continue
        trial = dict(free)
        earlier = before_success(job, role.spec)
        if grower.spec.name in earlier:
            trial[seat] = add(trial[seat], needed(grower.spec.resources))
        for name in earlier:
            for replica in seated(job, job.roles[name]):
                if replica.node in trial:
                    trial[replica.node] = add(trial[replica.node], needed(job.role_of(replica.id).spec.resources))
        if not _fit(needed(role.spec.resources), missing, trial):
            return False
        if not earlier:
            free = trial
    return True


def before_success(job: JobState, spec: RoleSpec) -> dict[str, None]:
    """The unfinished roles that have to succeed before this one can start: never alive at the same time as it."""
    found: dict[str, None] = {}
    for gate in spec.gates:
        upstream = job.roles[gate.role]
        found.update(before_success(job, upstream.spec))
        if gate.condition == "succeeded" and upstream.outcome is None:
            found[gate.role] = None
    return found


def _fit(need: Capacity, count: int, free: Free) -> bool:
    """Seats `count` in `free`, which is changed."""
    for _ in range(count):
        node = best_node(need, free)
        if node is None:
            return False
        free[node] = subtract(free[node], need)
    return True


def explain(job: JobState, role: Role) -> str:
    """Why one more replica of the role finds no place, node by node."""
    need = needed(role.spec.resources)
    wants = _words(need)
    free = free_capacity(job)
    if not free:
        return f"{role.spec.name} needs {wants} a replica, and no node is up"
    parts = [f"{name} has {_words(capacity, need)} free" for name, capacity in list(free.items())[:4]]
    more = f", and {len(free) - 4} more nodes have too little" if len(free) > 4 else ""
    return f"{role.spec.name} needs {wants} a replica: {', '.join(parts)}{more}"


def _words(capacity: Capacity, like: Capacity | None = None) -> str:
    """`2 cpu, 1 gpu`; only what `like` asks for."""
    like = like or capacity
    parts = []
    if like.mcpu:
        parts.append(f"{capacity.mcpu / 1000:g} cpu")
    if like.gpu:
        parts.append(f"{capacity.gpu} gpu")
    if like.memory:
        parts.append(f"{format_memory(max(capacity.memory, 0))} memory")
    return ", ".join(parts) or "nothing"
