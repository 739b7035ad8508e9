"""What must be true of a job after every event, in the words of the domain.

`JobState.check()` runs this in the simulator and in the tests. Each assertion names what is wrong.
"""

from __future__ import annotations

from collections import Counter

from flowdist.control.deadlines import Due
from flowdist.control.placement import candidate, takes_more
from flowdist.control.state import LIVE_PHASES, OVER_PHASES, PHASES, JobState, Replica, Role, World
from flowdist.graph import offered, subtract, without


def check_job(job: JobState) -> None:
    for name in job.nodes:
        _check_node(job, name)
    _check_room(job)
    for replica in job.replicas.values():
        _check_replica(job, replica)
    for world in job.worlds.values():
        _check_world(job, world)
    for role in job.roles.values():
        _check_counts(job, role)
    _check_incidents(job)
    _check_budgets(job)
    _check_outcome(job)


def _check_node(job: JobState, name: str) -> None:
    """Nothing is given twice: no node is over its capacity, no GPU is in two replicas, but for those that share it."""
    node = job.nodes[name]
    free = offered(node.spec)
    held = [(replica, job.replicas[replica].gpus) for replica in node.replicas]
    for replica, gpus in [*held, *((replica, gpus) for (replica, _), gpus in node.stuck.items())]:
        free = subtract(free, job.role_of(replica).need, gpus)
    least = min(free.mcpu, free.memory, *free.devices)
    assert least >= 0, f"{name} is over its capacity, or a GPU of it is given twice: {free}"
    free = without(free, tuple(node.bad_gpus))
    assert free == node.free, f"{name} has {free} left, not {node.free}"
    assert job.free.get(name) == (free if takes_more(node) else None), f"{name} is offered with {job.free.get(name)}"
    for world in node.stores:
        assert job.worlds[world].store_node == name, f"{name} has a store of {world} that is elsewhere"
    for replica in node.replicas:
        assert job.replicas[replica].node == name, f"{replica} is not on {name}"


def _check_room(job: JobState) -> None:
    """The nodes that placement chooses from are those that it would find if it looked at all."""
    usable = sorted((node.order, name) for name, node in job.nodes.items() if node.usable)
    assert usable == job.usable, f"{usable} are usable, not {job.usable}"
    for shelf in job.shelves:
        found = [candidate(job, shelf, name, job.free.get(name)) for name in job.nodes]
        best_first = sorted(best for best in found if best is not None)
        assert best_first == list(shelf), f"{shelf.need} fits on {best_first}, not {list(shelf)}"
        assert shelf.slots == sum(abs(rank) for rank, _, _ in best_first), f"{shelf.need} fits {shelf.slots} times"


def _check_replica(job: JobState, replica: Replica) -> None:
    name = str(replica.id)
    role = job.role_of(replica.id)
    if replica.node is not None:
        assert replica.id in job.nodes[replica.node].replicas, f"{name} has a seat that {replica.node} does not know"
        wanted = role.spec.resources.gpu
        assert len(replica.gpus) == wanted, f"{name} has {len(replica.gpus)} GPUs, not {wanted}"
    else:
        assert not replica.is_live, f"{name} is {replica.phase} without a node"
        assert not replica.gpus, f"{name} keeps GPUs without a node"
    if replica.is_live:
        assert replica.attempt > 0 and replica.order is not None, f"{name} runs without an order"
        assert replica.order.node == replica.node, f"{name} was started elsewhere"
        assert job.nodes[replica.order.node].usable or replica.phase == "stopping", f"{name} runs on a lost node"
    if replica.id in job.parked:
        assert replica.node is not None and job.nodes[replica.node].usable, f"{name} waits in place on no node"
        assert not replica.is_live and replica.order is not None, f"{name} waits in place, and is {replica.phase}"
        assert replica.order.node == replica.node, f"{name} waits in place where it did not run"
        world = job.worlds[replica.world]
        between = world.phase in ("stopping", "waiting", "opening") or world.notice is not None
        assert between, f"{name} waits in place for a world that is {world.phase}"
    waits_for_ready = replica.phase == "running" and role.spec.ready is not None and job.ending is None
    assert (Due("ready", name) in job.due) == waits_for_ready, f"{name}: ready deadline while {replica.phase}"


def _check_counts(job: JobState, role: Role) -> None:
    """What is kept so that nobody has to count it is what counting finds."""
    replicas = job.replicas_of(role)
    seated = Counter(replica.phase for replica in replicas if replica.node is not None)
    unseated = Counter(replica.phase for replica in replicas if replica.node is None)
    for phase in PHASES:
        counts = (seated[phase], unseated[phase])
        assert counts == (role.seated[phase], role.unseated[phase]), f"{role.spec.name}: {phase} miscounted"
    assert role.seats == sum(role.seated.values()), f"the seats of {role.spec.name} are miscounted"
    waiting = {world.name for world in job.worlds_of(role) if world.phase == "waiting"}
    assert waiting == set(role.waiting), f"of {role.spec.name} {waiting} wait, not {list(role.waiting)}"
    leaving = {world.name for world in job.worlds_of(role) if world.retiring == "ended"}
    assert leaving == set(role.leaving), f"of {role.spec.name} {leaving} leave, not {list(role.leaving)}"
    ended = sum(world.phase == "ended" for world in job.worlds_of(role))
    counted = role.spec.gang or job.ending is not None or ended == role.count("ended")
    assert counted, f"{ended} worlds of {role.spec.name} have ended, not {role.count('ended')}"
    vacant = [r.id.index for r in replicas if r.node is None and r.phase not in OVER_PHASES]
    assert vacant == role.vacant, f"of {role.spec.name} {vacant} have no seat, not {role.vacant}"
    portless = {replica.id for replica in replicas if replica.node is not None and replica.ports_node != replica.node}
    assert portless == set(role.portless), f"{role.spec.name}: {portless} have no ports, not {list(role.portless)}"
    live = sum(
        replica.phase in LIVE_PHASES for replica in job.replicas.values() if job.role_of(replica.id).depth == role.depth
    )
    assert job.live_at[role.depth] == live, f"{live} live at depth {role.depth}, not {job.live_at[role.depth]}"


def _check_world(job: JobState, world: World) -> None:
    members = job.members_of(world)
    roles = job.roles_of(world)
    ordered = [replica for replica in world.pool if replica in world.members]
    assert list(world.members) == ordered, f"the members of {world.name} are out of order, or of another world"
    counts = Counter(job.replicas[replica].phase for replica in world.pool)
    for phase in PHASES:
        assert counts[phase] == world.counts[phase], f"{world.name}: {phase} miscounted"
    silent = [job.replicas[replica] for replica in world.pool if job.replicas[replica].stalled]
    assert all(replica.is_up for replica in silent), f"of {world.name} something has stalled that does not run"
    stalls = Counter(replica.stalled for replica in silent)
    spoken = sum(replica.has_spoken for replica in silent)
    assert (stalls, spoken) == (world.stalls, world.spoken), f"the stalls of {world.name} are miscounted: {stalls}"
    live = [str(replica.id) for replica in members if replica.is_live]
    strangers = [str(r) for r in world.pool if r not in world.members and job.replicas[r].is_live]
    assert not strangers, f"{strangers} run outside the generation of {world.name}"
    if world.phase in ("waiting", "opening", "succeeded", "ended"):
        assert not live, f"{world.name} is {world.phase}, but {live} run"
    for role in roles if world.phase in ("opening", "running") and roles[0].spec.gang else ():
        count = sum(replica.id.role == role.spec.name for replica in members)
        assert role.spec.min_replicas <= count <= role.spec.max_replicas, f"{world.name} formed with {count}"
        assert count % role.spec.step == 0, f"{world.name} formed with {count} of {role.spec.name}: no mesh"
    if world.phase == "opening":
        assert all(replica.node is not None for replica in members), f"{world.name} opens without seats"
    if world.phase == "stopping" and job.ending is None:
        assert world.incident is not None or world.retiring, f"{world.name} stops, and nobody takes it from there"
    closing = any(replica.phase == "succeeded" for replica in members) and world.phase in ("running", "stopping")
    assert closing or Due("finish", world.name) not in job.due, f"{world.name} has to finish, but none of it has"
    if world.phase == "running":
        _check_running(job, world, members)


def _check_running(job: JobState, world: World, members: list[Replica]) -> None:
    """One generation, no hole in it, ranks 0..N-1; whoever is lost has led to a decision."""
    if job.ending is None and world.notice is None:
        phases = [replica.phase for replica in members]
        assert not {"gone", "waiting", "ended"} & set(phases), f"{world.name} runs on with members {phases}"
    procs = [job.role_of(replica.id).spec.procs for replica in members]
    for i, order in enumerate(replica.order for replica in members):
        assert order is not None and order.generation == world.generation, f"{world.name} mixes generations"
        ranks = (order.rank, order.world_size)
        assert ranks == (sum(procs[:i]), sum(procs)), f"{world.name}: ranks have holes"
        assert 0 <= order.source_rank < order.world_size, f"{world.name}: the source rank is nobody's"


def _check_incidents(job: JobState) -> None:
    """A world is in one open incident at most; nothing of a restart set starts before all of it is gone (R6)."""
    assert list(job.open) == [i.number for i in job.incidents if i.is_open], "the open incidents are miscounted"
    for incident in job.open_incidents():
        for name in incident.worlds:
            world = job.worlds[name]
            assert world.incident == incident.number, f"{name} is in incident {incident.number} and {world.incident}"
            if incident.phase == "stopping":
                up = [str(replica.id) for replica in job.members_of(world) if replica.is_up]
                assert not up, f"{up} are up while incident {incident.number} stops"
    for world in job.worlds.values():
        if world.incident is not None:
            assert world.name in job.incident(world.incident).worlds, f"{world.name} is not in its incident"


def _check_budgets(job: JobState) -> None:
    """Each charge is one incident's, and no role is ever restarted more often than its budget allows (R7, R11)."""
    for role in job.roles.values():
        charged = [(i.opened_ns, i.level) for i in job.incidents if i.charged_to == role.spec.name]
        assert sorted(role.charges) == sorted(charged), f"{role.spec.name} was charged {role.charges}, not {charged}"
        own = [i for i in job.incidents if i.root_role == role.spec.name]
        blamed = [i.number for i in own if i.counted or Due("verdict", str(i.number)) in job.due]
        assert set(blamed) <= set(role.rooted), f"{role.spec.name} is the root of {blamed}, not {role.rooted}"
        lost_in = [i.number for i in job.incidents if any(replica.role == role.spec.name for replica in i.lost)]
        assert lost_in == role.lost_in, f"{role.spec.name} was lost in {lost_in}, not {role.lost_in}"
        policy, level = role.spec.restart, 0
        while policy is not None:
            opened = [at for at, of in charged if of == level]
            spent = sorted(opened + [i.opened_ns for i in own if i.is_open and i.counted and i.level == level])
            if job.ending is None:
                assert spent == role.spent.get(level, []), f"{role.spec.name} has spent {role.spent}, not {spent}"
            window = policy.within_ns
            for i, at in enumerate(opened):
                seen = sum(window is None or other > at - window for other in opened[: i + 1])
                assert seen <= policy.max_restarts, f"{role.spec.name} is over its budget"
            policy, level = policy.wider, level + 1
        assert all(of < level for _, of in charged), f"{role.spec.name} is charged without a budget"


def _check_outcome(job: JobState) -> None:
    """A terminal state means that nothing runs any more (R18)."""
    if job.outcome is None:
        return
    live = [str(replica.id) for replica in job.replicas.values() if replica.is_live]
    assert not live, f"the job has {job.outcome}, but {live} run"
    assert not job.open, "the job is over with open incidents"
    assert all(role.outcome is not None for role in job.roles.values()), "the job is over with unfinished roles"
