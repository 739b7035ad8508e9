"""Invariants of a job: what holds after every event. An AssertionError names what is wrong; nothing is changed.

Most of the state is kept twice: once where it belongs, and once counted or sorted for quick decisions. So most
invariants recompute the second from the first. `check_job` checks all, `InvariantChecker` what may have changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from flowdist.control.job.deadlines import Due
from flowdist.control.job.parts import LIVE_PHASES, OVER_PHASES, PHASES, UP_PHASES
from flowdist.control.job.state import Incident, JobState, Node, Replica, Role, World
from flowdist.control.placement.chooser import candidate
from flowdist.control.placement.placement import takes_more
from flowdist.control.protocol.effects import Effect, StartReplica
from flowdist.control.protocol.events import (
    CheckpointOffered,
    Event,
    NodeHeard,
    ReplicaProgressed,
    ReplicaSpent,
    ReplicaStepped,
)
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.control.snapshots.checks import check_snapshots, check_start
from flowdist.graph import VersionEdge, format_duration
from flowdist.graph.capacity import Capacity, offered, subtract, without

SMALL = 128  # nodes, replicas and incidents of a job that "paced" checks in full after each event
SHARE = 8  # "paced" checks a larger job in full once in so many events: its nodes, replicas and incidents / SHARE
EVERY = 32  # checks of "changed" from one full check to the next
# Events that change nothing that an invariant is about.
PROGRESS = (ReplicaProgressed, ReplicaStepped, ReplicaSpent, CheckpointOffered, NodeHeard)

Checks = Literal["all", "paced", "changed"]
Key = tuple[object, ...]


def check_job(job: JobState) -> None:
    """Check every invariant of the job."""
    for name, node in job.nodes.items():
        check_node(job, name, node)
    check_room(job)
    for role in job.roles.values():
        check_role(job, role)
    check_sums(job)
    for world in job.worlds.values():
        check_world(job, world)
    check_incidents(job)
    check_budgets(job)
    check_outcome(job)


def check_node(job: JobState, name: str, node: Node) -> None:
    """Check that a node has what the replicas and stores on it say, and that its free capacity is the rest.

    No node is over its capacity. No GPU is given to two replicas, unless both may share it.
    """
    free = offered(node.spec)
    for id in node.replicas:
        replica = job.replicas[id]
        assert replica.node == name, f"{id} is not on {name}"
        free = subtract(free, job.roles[id.role].need, replica.gpus)
    for (id, _), gpus in node.stuck.items():
        free = subtract(free, job.roles[id.role].need, gpus)
    is_kept = free.mcpu >= 0 and free.memory >= 0 and (not free.devices or min(free.devices) >= 0)
    assert is_kept, f"{name} is over its capacity, or a GPU of it is given twice: {free}"
    free = without(free, tuple(node.bad_gpus))
    assert free == node.free, f"{name} has {free} left, not {node.free}"
    assert job.free.get(name) == (free if takes_more(node) else None), f"{name} is offered with {job.free.get(name)}"
    for world in node.stores:
        assert job.worlds[world].store_node == name, f"{name} has a store of {world} that is elsewhere"


def check_room(job: JobState) -> None:
    """Recompute the lists of usable, warming, leaving and suspected nodes and the candidate indexes, and compare."""
    usable = sorted((node.order, name) for name, node in job.nodes.items() if node.usable)
    assert usable == job.usable, f"{usable} are usable, not {job.usable}"
    assert all(job.nodes[name].usable for name in job.warming), f"{list(job.warming)} warm up, and are not all up"
    leaving = {name for name, node in job.nodes.items() if node.usable and node.is_leaving}
    assert leaving == set(job.leaving), f"{sorted(job.leaving)} are being left, and {sorted(leaving)} say so"
    assert all(job.nodes[name].usable for name in job.suspected), (
        f"{list(job.suspected)} are overdue, and are not all up"
    )
    for candidates in job.candidate_indexes:
        found = [candidate(job, candidates, name, free) for name, free in job.free.items()]
        best_first = sorted([best for best in found if best is not None])
        assert best_first == list(candidates), f"{candidates.need} fits on {best_first}, not {list(candidates)}"
        assert candidates.slots == sum([abs(best[0]) for best in best_first]), (
            f"{candidates.need} fits {candidates.slots} times"
        )


def check_place(job: JobState, name: str) -> None:
    """Check that the list of usable nodes and the candidate indexes agree with the state of this node."""
    node = job.nodes[name]
    assert ((node.order, name) in job.usable) == node.usable, f"{name} is usable: {node.usable}, against {job.usable}"
    check_candidates(job, name)


def check_candidates(job: JobState, name: str) -> None:
    """Recompute the entry of this node in each candidate index from its free capacity, and compare."""
    free = job.free.get(name)
    for candidates in job.candidate_indexes:
        best = candidate(job, candidates, name, free)
        assert best == candidates.get(name), f"{candidates.need} fits on {best}, not {candidates.get(name)}"


def check_role(job: JobState, role: Role) -> None:
    """Check each replica of the role, and recompute its counts, vacancies and lists of worlds."""
    name = role.spec.name
    seated, unseated = dict.fromkeys(PHASES, 0), dict.fromkeys(PHASES, 0)
    vacant, portless = [], []
    for id in role.replicas:
        replica = job.replicas[id]
        phase = replica.phase
        check_replica(job, replica, role)
        if replica.node is not None:
            seated[phase] += 1
            if replica.ports_node != replica.node:
                portless.append(id)
        else:
            unseated[phase] += 1
            if phase not in OVER_PHASES:
                vacant.append(id.index)
    assert (seated, unseated) == (role.seated, role.unseated), f"{name}: miscounted, it is {seated} and {unseated}"
    assert role.seats == sum(seated.values()), f"the seats of {name} are miscounted"
    assert vacant == role.vacant, f"of {name} {vacant} have no seat, not {role.vacant}"
    assert set(portless) == role.portless.keys(), f"{name}: {portless} have no ports, not {list(role.portless)}"
    waiting, leaving, ended = set(), set(), 0
    for world in job.worlds_of(role):
        if world.phase == "waiting":
            waiting.add(world.name)
        if world.retiring == "ended":
            leaving.add(world.name)
        ended += world.phase == "ended"
    assert waiting == role.waiting.keys(), f"of {name} {waiting} wait, not {list(role.waiting)}"
    assert leaving == role.leaving.keys(), f"of {name} {leaving} leave, not {list(role.leaving)}"
    counted = role.spec.gang or job.ending is not None or ended == role.count("ended")
    assert counted, f"{ended} worlds of {name} have ended, not {role.count('ended')}"


def check_sums(job: JobState) -> None:
    """Check the sums over all roles: live replicas by the depth of their role, and readiness deadlines."""
    live = dict.fromkeys(job.live_at, 0)
    wait: list[str] = []
    for role in job.roles.values():
        seated = role.seated
        live[role.depth] += seated["starting"] + seated["running"] + seated["ready"] + seated["stopping"]
        edge = role.spec.versions
        has_deadline = edge is None or job.roles[edge.role].version >= 0
        if role.spec.has_readiness and has_deadline and seated["running"] and job.ending is None:
            wait += [str(id) for id in role.replicas if job.replicas[id].phase == "running"]
    assert live == job.live_at, f"{live} live, by the depth of their roles, not {job.live_at}"
    due = sorted([due.name for due in job.due if due.what == "ready"])
    assert due == sorted(wait), f"{due} have a deadline to get ready by, not {sorted(wait)}"


def check_replica(job: JobState, replica: Replica, role: Role) -> None:
    """Check the seat of a replica, its GPUs, and the order that its present attempt runs under."""
    phase = replica.phase
    if replica.node is not None:
        node = job.nodes[replica.node]
        assert replica.id in node.replicas, f"{replica.id} has a seat that {replica.node} does not know"
        wanted = role.spec.resources.gpu
        assert len(replica.gpus) == wanted, f"{replica.id} has {len(replica.gpus)} GPUs, not {wanted}"
    else:
        assert phase not in LIVE_PHASES, f"{replica.id} is {phase} without a node"
        assert not replica.gpus, f"{replica.id} keeps GPUs without a node"
    if phase in LIVE_PHASES:
        order = replica.order
        assert replica.attempt > 0 and order is not None, f"{replica.id} runs without an order"
        assert order.node == replica.node, f"{replica.id} was started elsewhere"
        assert job.nodes[order.node].usable or phase == "stopping", f"{replica.id} runs on a lost node"
    if replica.id in job.suspended:
        _check_suspended(job, replica)
    if phase == "ready" and role.spec.versions is not None:
        _check_version(job, replica, role.spec.versions)


def _check_version(job: JobState, replica: Replica, edge: VersionEdge) -> None:
    """Check that a replica got ready with a version that was published, and fresh enough at that time (R23)."""
    assert replica.admitted is not None, f"{replica.id} is ready without a version of {edge.role}"
    version, latest = replica.admitted
    highest = job.roles[edge.role].highest_version
    assert 0 <= version <= highest, f"{replica.id} is ready with version {version} of {edge.role}, not up to {highest}"
    assert latest - version <= edge.max_staleness, f"{replica.id} is ready with version {version}, and {latest} is out"
    assert replica.version >= 0, f"{replica.id} is ready and has acknowledged nothing"


def _check_suspended(job: JobState, replica: Replica) -> None:
    """Check a replica whose workers stay in place between two generations (R6)."""
    name, order, world = str(replica.id), replica.order, job.worlds[replica.world]
    assert replica.node is not None and job.nodes[replica.node].usable, f"{name} waits in place on no node"
    assert not replica.is_live and order is not None, f"{name} waits in place, and is {replica.phase}"
    assert order.node == replica.node, f"{name} waits in place where it did not run"
    between = world.phase in ("stopping", "waiting", "opening") or world.notice is not None
    assert between, f"{name} waits in place for a world that is {world.phase}"


def check_world(job: JobState, world: World) -> None:
    """Check the members of a world, the counts of their phases, and what the phase of the world requires of them."""
    _check_pool(job, world)
    members = [job.replicas[id] for id in world.members]
    live = [replica.id for replica in members if replica.phase in LIVE_PHASES]
    assert len(live) == world.live, (
        f"only {_names(live)} of {world.live} that run are of the generation of {world.name}"
    )
    if world.phase in ("waiting", "opening", "succeeded", "ended"):
        assert not live, f"{world.name} is {world.phase}, but {_names(live)} run"
    if world.phase in ("opening", "running"):
        _check_formed(job, world, members)
    if world.phase == "stopping" and job.ending is None:
        assert world.incident is not None or world.retiring, f"{world.name} stops for no incident and is not retiring"
    if world.snapshots or world.reads is not None or world.buddies:
        check_snapshots(job, world)
    if Due("finish", world.name) in job.due:
        is_closing = world.phase in ("running", "stopping") and any(replica.phase == "succeeded" for replica in members)
        assert is_closing, f"{world.name} has to finish, but none of it has"


def _check_pool(job: JobState, world: World) -> None:
    """Check the order of the members, and recompute the phases and stalls of all replicas that may be members."""
    pool = iter(world.pool)
    # `in` reads the iterator up to the member, so that the next member has to come behind it.
    is_ordered = world.members == world.pool or all(id in pool for id in world.members)
    assert is_ordered, f"the members of {world.name} are out of order, or of another world"
    counts = dict.fromkeys(PHASES, 0)
    silent = []
    for id in world.pool:
        replica = job.replicas[id]
        counts[replica.phase] += 1
        if replica.stalled:
            silent.append(replica)
    assert counts == world.counts, f"{world.name}: miscounted, it is {counts}"
    if silent or any(world.stalls.values()):
        _check_stalls(world, silent)


def _check_formed(job: JobState, world: World, members: list[Replica]) -> None:
    """Check a world that opens or runs: the size of a gang, the seats of its members, or the orders if it runs."""
    roles = job.roles_of(world)
    for role in roles if roles[0].spec.gang else ():
        count = sum([id.role == role.spec.name for id in world.members])
        assert role.spec.min_replicas <= count <= role.spec.max_replicas, f"{world.name} formed with {count}"
        assert count % role.spec.step == 0, f"{world.name} formed with {count} of {role.spec.name}: no mesh"
    if world.phase == "opening":
        assert all(replica.node is not None for replica in members), f"{world.name} opens without seats"
    else:
        _check_running(job, world, members)


def _names(ids: list[ReplicaId]) -> str:
    return ", ".join(map(str, ids))


def _check_stalls(world: World, silent: list[Replica]) -> None:
    stalls = Counter([replica.stalled for replica in silent])
    assert all(replica.phase in UP_PHASES for replica in silent), f"of {world.name} something stalls that is down"
    assert stalls == world.stalls, f"the stalls of {world.name} are miscounted: {stalls}"


def _check_running(job: JobState, world: World, members: list[Replica]) -> None:
    """Check that the orders of a running world's members are of one generation, with ranks 0..N-1.

    None may be gone, waiting or ended, unless the job ends or the world has a notice to leave nodes.
    """
    undecided = job.ending is None and world.notice is None
    size = sum([job.replicas[id].procs for id in world.members])
    rank, first = 0, members[0].order
    assert first is not None, f"{world.name} runs without an order"
    for replica in members:
        if undecided:
            is_in = replica.phase not in ("gone", "waiting", "ended")
            assert is_in, f"{world.name} runs on while {replica.id} is {replica.phase}"
        order = replica.order
        assert order is not None and order.generation == world.generation, f"{world.name} mixes generations"
        assert order.rank == rank and order.world_size == size, f"{world.name}: ranks have holes"
        assert 0 <= order.source_rank < size, f"{world.name}: the source rank is not the rank of a member"
        assert order.snapshot == first.snapshot, f"the members of {world.name} go on from different states"
        rank += replica.procs


def check_incidents(job: JobState) -> None:
    """Check that each world is in one open incident at most, and that no member is up while it is stopping (R6)."""
    assert list(job.open) == [i.number for i in job.incidents if i.is_open], "the open incidents are miscounted"
    for incident in job.open_incidents():
        for name in incident.worlds:
            world = job.worlds[name]
            assert world.incident == incident.number, f"{name} is in incident {incident.number} and {world.incident}"
            if incident.phase == "stopping":
                up = [str(replica.id) for replica in job.members_of(world) if replica.is_up]
                assert not up, f"{up} are up while incident {incident.number} stops"
        _check_deferred(job, incident)
    for world in job.worlds.values():
        if world.incident is not None:
            assert world.name in job.incident(world.incident).worlds, f"{world.name} is not in its incident"


def _check_deferred(job: JobState, incident: Incident) -> None:
    """Check that what the incident's deferred failures wait for will come: an answer, an end, a loss, or a deadline.

    An incident without deferred failures has no suspects, and one that starts its worlds has neither.
    """
    waits = f"incident {incident.number} waits for {', '.join(incident.suspects) or 'no node'}"
    assert incident.deferred or not incident.suspects, f"{waits}, and has nothing to judge"
    assert not incident.deferred or incident.phase == "stopping", f"{waits}, and starts: {incident.deferred}"
    assert all(job.nodes[name].usable for name in incident.suspects), f"{waits}, which is lost"
    is_bounded = Due("answer", str(incident.number)) in job.due
    is_suspected = bool(incident.suspects) and incident.suspects.keys() <= job.suspected.keys()
    stops = any(each.awaits_steps and _stops(job, each.failure.replica) for each in incident.deferred)
    assert is_bounded or is_suspected or stops or not incident.deferred, f"{waits}, which need not answer"


def _stops(job: JobState, replica: ReplicaId) -> bool:
    world = job.worlds[job.replicas[replica].world]
    return world.live > 0 and world.up == 0


def check_budgets(job: JobState) -> None:
    """Compare each role's charges and lost replicas with the incidents, and its charges with its budget (R7, R11)."""
    charged: dict[str, list[Incident]] = {}
    rooted: dict[str, list[Incident]] = {}
    lost_in: dict[str, list[int]] = {}
    for incident in job.incidents:
        if incident.charged_to is not None:
            charged.setdefault(incident.charged_to, []).append(incident)
        if incident.root_role is not None:
            rooted.setdefault(incident.root_role, []).append(incident)
        for name in {id.role: None for id in incident.lost}:
            lost_in.setdefault(name, []).append(incident.number)
    for name, role in job.roles.items():
        paid, own, lost = charged.get(name, []), rooted.get(name, []), lost_in.get(name, [])
        if paid or own or lost or role.charges or role.spent or role.lost_in:
            assert lost == role.lost_in, f"{name} was lost in {lost}, not {role.lost_in}"
            _check_budget(job, role, paid, own)


def _check_budget(job: JobState, role: Role, paid: list[Incident], own: list[Incident]) -> None:
    name = role.spec.name
    charged = [(incident.opened_ns, incident.level) for incident in paid]
    assert sorted(role.charges) == sorted(charged), f"{name} was charged {role.charges}, not {charged}"
    policy, level = role.spec.restart, 0
    while policy is not None:
        opened = [at for at, of in charged if of == level]
        spent = sorted(opened + [i.opened_ns for i in own if i.is_open and i.counted and i.level == level])
        if job.ending is None:
            assert spent == role.spent.get(level, []), f"{name} has spent {role.spent}, not {spent}"
        assert _most_within(opened, policy.within_ns) <= policy.max_restarts, f"{name} is over its budget"
        policy, level = policy.wider, level + 1
    assert all(of < level for _, of in charged), f"{name} is charged without a budget"


def _most_within(times: list[int], window_ns: int | None) -> int:
    """Return the largest number of these ascending times (ns) within any window of that length; None: all of them."""
    if window_ns is None:
        return len(times)
    return max([sum([other > at - window_ns for other in times[: i + 1]]) for i, at in enumerate(times)], default=0)


def check_outcome(job: JobState) -> None:
    """Check that one role at most has failed the job, and that nothing is live or open in a job that is over (R18)."""
    failed = [name for name, role in job.roles.items() if role.outcome == "failed"]
    assert len(failed) <= int(job.ending == "failed"), (
        f"{failed} have failed, and the job is {job.ending or 'under way'}"
    )
    if job.outcome is None:
        return
    live = [str(replica.id) for replica in job.replicas.values() if replica.is_live]
    assert not live, f"the job has {job.outcome}, but {live} run"
    assert not job.open, "the job is over with open incidents"
    assert all(role.outcome is not None for role in job.roles.values()), "the job is over with unfinished roles"


class InvariantChecker:
    """Incremental invariant checker for one controller: call `note` after each event, and `check`, by the schedule.

    "all" is a full check after each event. "paced" is one every size / SHARE events in a job of more than SMALL nodes,
    replicas and incidents, so that the total cost stays linear; in between it checks what events and effects name. With
    "changed", once a moment, it finds changes by keys: a controller with a bug may not say what it changed.
    """

    def __init__(self, checks: Checks = "all") -> None:
        self.checks: Checks = checks
        self.by_moment = checks == "changed"
        self._left = 0  # checks until the next full one
        self._is_due = True  # an event since the last check may have broken something
        self._n, self._now = 0, 0  # the number of the last event, and its time (ns)
        self._held: tuple[int, int] = (0, 0)  # the same of the last event after which a full check passed
        self._nodes: dict[NodeName, None] = {}  # named by events since the last check
        self._replicas: dict[ReplicaId, None] = {}
        self._keys = _Keys()

    def note(self, job: JobState, event: Event, effects: Iterable[Effect], n: int, now: int) -> None:
        """Record event `n`, handled at `now` (ns), so that the next `check` covers what it may have changed."""
        self._n, self._now = n, now
        if type(event) in PROGRESS and (self.by_moment or self._left > 0):
            return
        self._is_due = True
        for effect in effects:
            if type(effect) is StartReplica and effect.snapshot is not None:
                check_start(job, effect, effect.snapshot)
        if self.checks == "paced" and self._left > 1:
            self._note_named(job, (event, *effects))

    def check(self, job: JobState) -> None:
        """Check the job, in full or in part by the schedule; AssertionError if an invariant does not hold."""
        if not self._is_due:
            return
        self._is_due = False
        if self.by_moment:
            self._check_moment(job)
        else:
            self._check_event(job)

    def _check_event(self, job: JobState) -> None:
        self._left -= 1
        try:
            if self._left > 0:
                self._check_named(job)
                return
            check_job(job)
        except AssertionError as error:
            raise AssertionError(f"{error}{self._since()}") from error
        size = len(job.nodes) + len(job.replicas) + len(job.incidents)
        self._left = size // SHARE if size > SMALL and self.checks == "paced" else 0
        self._held = (self._n, self._now)

    def _since(self) -> str:
        """Return a text for an error that says between which events the fault arose; empty if at the last event."""
        number, at = self._held
        if self._n <= number + 1:
            return ""
        return f" (seen after event {self._n}; everything held after event {number}, at {format_duration(at)})"

    def _note_named(self, job: JobState, items: tuple[Event | Effect, ...]) -> None:
        for item in items:
            node, id = getattr(item, "node", None), getattr(item, "replica", None)
            if node in job.nodes:
                self._nodes[node] = None
            if id in job.replicas:
                self._replicas[id] = None

    def _check_named(self, job: JobState) -> None:
        nodes, replicas = self._nodes, self._replicas
        self._nodes, self._replicas = {}, {}
        for id in replicas:
            replica = job.replicas[id]
            check_replica(job, replica, job.roles[id.role])
            if self._keys.has_moved_on(job.worlds[replica.world]):
                check_world(job, job.worlds[replica.world])
            if replica.node is not None:
                nodes[replica.node] = None
        for name in nodes:
            if len(job.nodes[name].replicas) <= SMALL:
                check_node(job, name, job.nodes[name])
            check_candidates(job, name)

    def _check_moment(self, job: JobState) -> None:
        keys = self._keys
        moved, worlds, roles = keys.moved_nodes(job), keys.changed_worlds(job), keys.changed_roles(job)
        is_other = keys.has_other_incidents(job)
        if self._left == 0:
            self._left = EVERY - 1
            check_job(job)
            return
        self._left -= 1
        for name in moved:
            check_node(job, name, job.nodes[name])
            check_place(job, name)
            for id in job.nodes[name].replicas:
                check_replica(job, job.replicas[id], job.roles[id.role])
        for world in worlds:
            check_world(job, world)
        for role in roles:
            check_role(job, role)
        if is_other:
            check_budgets(job)
        if is_other or roles:
            check_sums(job)
        if is_other or roles or moved or worlds:
            check_incidents(job)


class _Keys:
    """Keys of the nodes, worlds, roles and incidents of a job, to find those that have changed.

    Each method compares with what it found at its last call: asked again at once, it finds no change.
    """

    def __init__(self) -> None:
        self._free: dict[NodeName, Capacity] = {}
        self._usable: list[tuple[int, NodeName]] = []
        self._worlds: dict[str, Key] = {}
        self._roles: dict[str, Key] = {}
        self._incidents: Key = ()

    def has_moved_on(self, world: World) -> bool:
        """Return whether phase, generation, incident or retirement of the world have changed since the last call.

        Else "paced" does not check it: a check costs as much as the world is large, and each of its replicas is named.
        """
        key = (world.phase, world.generation, world.incident, world.retiring)
        if self._worlds.get(world.name) == key:
            return False
        self._worlds[world.name] = key
        return True

    def moved_nodes(self, job: JobState) -> list[NodeName]:
        """Return the nodes whose free capacity has changed, or that came or became unusable, since the last call."""
        if job.free == self._free and job.usable == self._usable:
            return []
        turned = {name for _, name in {*self._usable} ^ {*job.usable}}
        moved = [name for name in job.nodes if name in turned or job.free.get(name) != self._free.get(name)]
        self._free, self._usable = dict(job.free), list(job.usable)
        return moved

    def changed_worlds(self, job: JobState) -> list[World]:
        """Return the worlds whose members, phases, stalls, incident or notice have changed since the last call."""
        known, changed = self._worlds, []
        for name, world in job.worlds.items():
            what = (world.phase, world.generation, world.incident, world.retiring, world.members)
            key = (*what, world.notice is None, *world.counts.values(), *world.stalls.values())
            if known.get(name) != key:
                known[name] = key
                changed.append(world)
        return changed

    def changed_roles(self, job: JobState) -> list[Role]:
        """Return the roles whose seats, or whose replicas by phase, have changed in number since the last call."""
        known, changed = self._roles, []
        for name, role in job.roles.items():
            many = (len(role.vacant), len(role.portless), len(role.waiting), len(role.leaving))
            key = (role.seats, *many, *role.seated.values(), *role.unseated.values())
            if known.get(name) != key:
                known[name] = key
                changed.append(role)
        return changed

    def has_other_incidents(self, job: JobState) -> bool:
        """Return whether incidents opened or closed, the job ends, or other deadlines are set since the last call."""
        key = (len(job.incidents), *job.open, job.ending, *job.due)
        if key == self._incidents:
            return False
        self._incidents = key
        return True
