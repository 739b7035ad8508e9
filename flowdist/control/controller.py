"""The controller: it records each event as a fact, then settles the job from its state alone.

    controller = Controller(graph, known_nodes=("node0", "node1"))
    effects = controller.handle(NodeJoined(...), now=0)

The caller passes the time: `now` is in nanoseconds since the start of the job and does not decrease. An event of an
attempt, a generation or an incarnation that is over changes nothing (R20).

To record is to write down what has happened: phases, ports, progress, failures, losses. To settle is to decide what
follows, in one order: judge failures and losses, advance incidents, judge success, form worlds, publish addresses.
"""

from __future__ import annotations

from typing import assert_never

from flowdist.control.incidents.advancing import advance
from flowdist.control.incidents.ending import begin_ending, forget_store, judge_success, settle_ending
from flowdist.control.incidents.hangs import judge_hang, note_revived, note_stalled
from flowdist.control.incidents.judging import judge_recorded, judge_unanswered
from flowdist.control.incidents.suspects import note_heard, note_suspected
from flowdist.control.job.deadlines import Due
from flowdist.control.job.facts import Change, Ended
from flowdist.control.job.initial_state import new_job
from flowdist.control.job.state import JobState, Replica, Role, World
from flowdist.control.membership.addresses import update_addresses
from flowdist.control.membership.attempts import note_exited, note_started, note_stopped
from flowdist.control.membership.drain import finish_notice, note_left, note_step, preempt
from flowdist.control.membership.formation import (
    closed_gates,
    form_worlds,
    start_members,
    touch_dependents,
    why_not_admitted,
)
from flowdist.control.membership.gpus import lose_gpu
from flowdist.control.membership.nodes import comes_back_empty, give_up_node, join, lose_node, warmed_up
from flowdist.control.membership.operator import apply_operation
from flowdist.control.placement.placement import explain
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import AnswerCheckpoint, Effect
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import RoleGraph, format_duration

SETTLE_ROUNDS_MAX = 1000  # each round gives up a seat, a world or an incident: more means a bug


class Controller:
    """All decisions about one job: events in, effects out.

    Args:
        graph: The compiled topology.
        known_nodes: Nodes that are expected to join. A gang below its maximum waits `join_window` for these and for no
            others. A name of `ids.unnamed_nodes` stands for a node of any name.
    """

    def __init__(self, graph: RoleGraph, known_nodes: tuple[NodeName, ...] = ()) -> None:
        self.state = new_job(graph, known_nodes)
        patience = max(role.pending_timeout_ns for role in graph.roles)
        self.state.due.set(Due("admission"), patience)
        for world in self.state.worlds.values():
            self.state.touch(world)

    def handle(self, event: ev.Event, now: int) -> list[Effect]:
        """Record an event, settle the job, and return the effects, in order. Once the job is over there are none.

        Deadlines that are due by `now` come first, each as an event of its own.

        Args:
            event: What has happened.
            now: When it is handled, in ns since the start of the job.

        Raises:
            ValueError: If `now` is before the `now` of an earlier call.
        """
        job = self.state
        if now < job.now:
            raise ValueError(f"time runs backwards: {now} after {job.now}")
        job.now = now
        if job.outcome is not None:
            return []
        job.effects = []
        if type(event) is ev.ControllerStarted:
            job.due.not_before(now + job.graph.options.silent_after_ns)
        while (due := job.due.pop_due(now)) is not None:
            if job.ending is None:
                _expire(job, due)
                judge_recorded(job)
        _record(job, event)
        settle(job)
        return job.effects

    def deadline(self) -> int | None:
        """Return when `handle(TimePassed(), now)` has to be called at the latest, in ns; None: never."""
        return self.state.due.next() if self.state.outcome is None else None


NodeEvent = (
    ev.NodeJoined
    | ev.NodeWarm
    | ev.NodeLeft
    | ev.NodeGone
    | ev.NodeSuspected
    | ev.NodeSilent
    | ev.NodeHeard
    | ev.NodePreempted
    | ev.GpuFailed
)


def _record(job: JobState, event: ev.Event) -> None:
    """Write down what has happened. `settle` judges failures and losses afterwards."""
    if ev.is_of_attempt(event):
        replica = _current(job, event.replica, event.attempt)
        if replica is not None:
            _record_of_replica(job, replica, event)
        return
    if isinstance(event, NodeEvent):
        _record_of_node(job, event)
        return
    match event:
        case ev.CheckpointOffered():
            _offered(job, event)
        case ev.StoreOpened():
            _store_opened(job, event)
        case ev.StoreLost():
            _store_lost(job, event)
        case (
            ev.ScaleRequested()
            | ev.CancelRequested()
            | ev.DrainRequested()
            | ev.CordonRequested()
            | ev.UncordonRequested()
        ):
            apply_operation(job, event)
        case ev.ControllerStarted():
            _take_over(job, event)
        case ev.TimePassed():
            pass
        case _:
            assert_never(event)


def _take_over(job: JobState, event: ev.ControllerStarted) -> None:
    """Record that another controller has taken over. Every node is suspected until it has connected (R21)."""
    if event.epoch <= job.epoch:
        return
    job.epoch = event.epoch
    for _, name in job.usable:
        job.nodes[name].awaits_inventory = True
        note_suspected(job, name)
    job.notify(f"the controller is back, as epoch {event.epoch}; what runs goes on", "warning")


def _record_of_node(job: JobState, event: NodeEvent) -> None:
    name = event.node
    match event:
        case ev.NodeJoined():
            if comes_back_empty(job, event):
                lose_node(job, name, f"{name} came back without what it ran")
                judge_recorded(job)  # it was lost before it came back
            for item in join(job, event):
                _record_item(job, item)
            note_heard(job, name)
        case ev.NodeWarm():
            warmed_up(job, name)
        case ev.NodeLeft():
            lose_node(job, name, f"{name} left", "it left", asked=True)
        case ev.NodeGone():
            lose_node(job, name, f"{name} lost ({event.cause})", event.cause)
        case ev.NodeSuspected():
            note_suspected(job, name)
        case ev.NodeSilent():
            because = f"not heard for {format_duration(job.graph.options.silent_after_ns)}"
            lose_node(job, name, f"{name} lost ({because})", because)
        case ev.NodeHeard():
            note_heard(job, name)
        case ev.NodePreempted():
            preempt(job, event)
        case ev.GpuFailed():
            lose_gpu(job, event)
        case _:
            assert_never(event)


def _record_of_replica(job: JobState, replica: Replica, event: ev.AttemptEvent) -> None:
    match event:
        case ev.ReplicaProgressed():
            replica.step = event.step
            world = job.worlds[replica.world]
            if event.step > world.step:
                world.step, world.progressed = event.step, True
        case ev.ReplicaStarted():
            note_started(job, replica, event)
        case ev.ReplicaStopped():
            note_stopped(job, replica, event)
            job.facts.append(Ended(replica.id))
        case ev.ReplicaReady():
            if replica.phase == "running" and job.role_of(replica.id).spec.ready is not None:
                job.set_phase(replica, "ready")
                job.due.clear(Due("ready", str(replica.id)))
                job.notify(f"{replica.id}: ready")
        case ev.ReplicaStartsCold():
            role = job.roles[replica.id.role]
            if not role.is_cold:
                role.is_cold = True
                job.notify(f"{role.spec.name} starts cold on {replica.node}: {event.detail}", "warning")
        case ev.ReplicaElastic():
            replica.is_elastic = True
        case ev.ReplicaExited():
            note_exited(job, replica, event)
            job.facts.append(Ended(replica.id))
        case ev.ReplicaUnkillable():
            give_up_node(job, replica)
        case ev.ReplicaStalled():
            note_stalled(job, replica, event)
        case ev.ReplicaRevived():
            note_revived(job, replica)
        case ev.StepTold():
            note_step(job, replica, event)
        case ev.ReplicaLeftStep():
            note_left(job, replica, event)
        case _:
            assert_never(event)


def settle(job: JobState) -> None:
    """Decide all that follows from the state: judge, advance incidents, form worlds, publish addresses.

    Each round visits what the round before has touched. The last one touches nothing.
    """
    if job.facts:
        judge_recorded(job)
    for _ in range(SETTLE_ROUNDS_MAX):
        if job.ending is not None:
            settle_ending(job)
            return
        if job.placement_changed:
            job.placement_changed = False
            if not job.admitted:
                job.touch(next(iter(job.worlds.values())))  # admission considers all worlds, whichever is touched
            for name in list(job.unsatisfied):
                del job.unsatisfied[name]
                job.touch_role(job.roles[name])
        if not job.touched and not job.touched_roles:
            return
        names = job.in_order(job.touched)
        job.touched.clear()
        advance(job, names)
        roles = _take_roles(job)
        judge_success(job, roles)
        if job.ending is None:
            touch_dependents(job, roles)
            form_worlds(job, job.in_order({**dict.fromkeys(names), **job.touched}) if job.touched else names)
        if job.ending is None:  # forming ends the job when a world waits for a role that was ignored
            update_addresses(job, roles)
    raise AssertionError("the job does not settle")


def _take_roles(job: JobState) -> list[Role]:
    roles = [job.roles[name] for name in job.touched_roles]
    job.touched_roles.clear()
    if len(roles) > 1:
        roles.sort(key=lambda role: role.order)
    return roles


def _current(job: JobState, replica: ReplicaId, attempt: int) -> Replica | None:
    """Return the replica, if that attempt is its present one and not over; else None (R20)."""
    found = job.replicas.get(replica)
    if found is None or found.attempt != attempt or not found.is_live:
        return None
    return found


def _record_item(job: JobState, item: ev.InventoryItem) -> None:
    """Record a line of an inventory as the events that were lost with the connection."""
    if item.phase in ("running", "ready"):
        _record(job, ev.ReplicaStarted(item.replica, item.attempt, item.ports))
    if item.phase == "ready":
        _record(job, ev.ReplicaReady(item.replica, item.attempt))
    if item.phase == "suspended" and item.exited is None:
        _record(job, ev.ReplicaStopped(item.replica, item.attempt, suspended=True))
    if item.phase == "stopped":
        _record(job, ev.ReplicaStopped(item.replica, item.attempt))
    if item.exited is not None:
        _record(job, item.exited)


def _store_opened(job: JobState, event: ev.StoreOpened) -> None:
    world = job.worlds.get(event.world)
    if world is not None and world.phase == "opening" and world.generation == event.generation and not job.ending:
        world.store_port = event.port
        start_members(job, world)


def _store_lost(job: JobState, event: ev.StoreLost) -> None:
    """Record the death of a store. Its world re-forms, and no budget pays, as no code of the user failed."""
    world = job.worlds.get(event.world)
    if world is None or world.generation != event.generation or world.store_node is None or job.ending:
        return
    cause = f"the store of {world.name} (generation {world.generation}) died" + (event.detail and f": {event.detail}")
    if world.phase in ("opening", "running"):
        forget_store(job, world)
        job.facts.append(Change("store_lost", world.name, cause, (world.name,), "not counted"))


def _offered(job: JobState, event: ev.CheckpointOffered) -> None:
    """Accept or refuse a checkpoint. Only the present generation may publish one (R19)."""
    replica = job.replicas.get(event.replica)
    if replica is None or replica.order is None or replica.attempt != event.attempt:
        return
    world = job.worlds[replica.world]
    accepted = replica.is_live and event.generation == world.generation
    reason = "" if accepted else f"generation {event.generation} of {world.name} is over"
    if accepted and world.checkpoint != event:  # it is offered again where the answer was lost
        world.checkpoint = event
        world.checkpoints += 1
    job.emit(AnswerCheckpoint(replica.order.node, replica.id, event.attempt, event.path, event.step, accepted, reason))


def _expire(job: JobState, due: Due) -> None:
    match due.what:
        case "admission":
            begin_ending(job, "failed", f"the job could not start in time: {why_not_admitted(job)}")
        case "pending":
            role = job.roles[due.name]
            if role.outcome is not None or closed_gates(job, role) or role.occupied >= role.spec.min_replicas:
                return  # the role waits for something else now; below its minimum again, it gets a new deadline
            waited = format_duration(role.spec.pending_timeout_ns)
            why = f"{due.name} was below its minimum for {waited}: {explain(job, role)}"
            begin_ending(job, "failed", why, due.name)
        case "ready":
            _unready(job, _by_name(job, due.name))
        case "arrivals":
            if job.missing:
                job.notify(f"not waiting any longer for {', '.join(job.missing)}", "warning")
            job.missing.clear()
            for world in job.worlds.values():
                job.touch(world)
        case "finish":
            _unfinished(job, job.worlds[due.name])
        case "answer":
            judge_unanswered(job, job.incident(int(due.name)))
        case "backoff":
            job.touched.update(job.incident(int(due.name)).worlds)
        case "cooldown":
            job.touch(job.worlds[due.name])
        case "drain":
            finish_notice(job, job.worlds[due.name])
        case "hang":
            judge_hang(job, job.worlds[due.name])
        case _:
            assert_never(due.what)


def _by_name(job: JobState, name: str) -> Replica:
    role, _, index = name.rpartition("/")
    return job.replicas[ReplicaId(role, int(index))]


def _unready(job: JobState, replica: Replica) -> None:
    spec = job.role_of(replica.id).spec
    why = f"it did not get ready within {format_duration(spec.ready_timeout_ns)}"
    replica.member_since = 0
    job.note_failure(replica, "unready", why)


def _unfinished(job: JobState, world: World) -> None:
    """Record a hang of the first member that runs on, `finish_timeout` after a member of its world finished (R17)."""
    late = next((replica for replica in job.members_of(world) if replica.is_up), None)
    if late is not None:
        timeout = format_duration(job.role_of(late.id).spec.finish_timeout_ns)
        late.member_since = 0
        world.hangs = True
        why = f"it did not finish within {timeout} after the first of {world.name}"
        job.note_failure(late, "hang", why)
