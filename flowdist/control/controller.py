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
from flowdist.control.incidents.recovery import note_first_step
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
from flowdist.control.membership.nodes import comes_back_empty, give_up_node, join, lose_node, note_still, warmed_up
from flowdist.control.membership.operator import apply_operation
from flowdist.control.membership.restores import note_restore
from flowdist.control.membership.versions import note_acknowledged, note_checked, note_published, why_not_fresh
from flowdist.control.placement.placement import explain
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import AnswerCheckpoint, Effect
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import RoleGraph, format_duration

SETTLE_ROUNDS_MAX = 1000  # a job settles in a few rounds: more means a bug


class Controller:
    """Pure state machine that makes all decisions about one job: events in, effects out.

    Args:
        graph: The compiled topology.
        known_nodes: Nodes that are expected to join. The first start waits for these, for `join_window` at most after
            the first node has joined. A name of `ids.unnamed_nodes` stands for a node of any name.
    """

    def __init__(self, graph: RoleGraph, known_nodes: tuple[NodeName, ...] = ()) -> None:
        self.state = new_job(graph, known_nodes)
        patience = max(role.pending_timeout_ns for role in graph.roles)
        self.state.due.set(Due("admission"), patience)
        for world in self.state.worlds.values():
            self.state.touch(world)

    def handle(self, event: ev.Event, now: int) -> list[Effect]:
        """Record an event, settle the job, and return what the controller wants done, in order.

        Deadlines that are due by `now` are handled before the event, each by itself. Once the job is over, nothing is
        recorded and there are no effects.

        Args:
            event: What has happened.
            now: The present time, in ns since the start of the job.

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


def _record(job: JobState, event: ev.Event) -> None:
    """Write the event down in the state. An event about an attempt that is over changes nothing (R20).

    Failures and losses become facts, which `settle` judges afterwards.
    """
    if ev.is_of_attempt(event):
        replica = _current(job, event.replica, event.attempt)
        if replica is not None:
            _record_of_replica(job, replica, event)
        return
    match event:
        case ev.CheckpointOffered():
            _offered(job, event)
        case ev.NodeJoined():
            _joined(job, event)
        case ev.StoreOpened():
            _store_opened(job, event)
        case ev.NodeWarm():
            warmed_up(job, event.node)
        case ev.NodeLeft() | ev.NodeGone() | ev.NodeSilent():
            _node_lost(job, event)
        case ev.NodeSuspected():
            note_suspected(job, event.node)
        case ev.NodeHeard():
            note_heard(job, event.node, job.now if event.up_ns is None else event.up_ns)
        case ev.NodePreempted():
            preempt(job, event)
        case ev.NodeStandsStill():
            note_still(job, event)
        case ev.GpuFailed():
            lose_gpu(job, event)
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
    """Record that a new controller process has taken over: every usable node is suspected until it connects (R21).

    An event whose epoch is not higher than the present one changes nothing.
    """
    if event.epoch <= job.epoch:
        return
    job.epoch = event.epoch
    for _, name in job.usable:
        job.nodes[name].awaits_inventory = True
        note_suspected(job, name)
    job.decided("controller_back", "", f"the controller is back, as epoch {event.epoch}; what runs goes on", "warning")


def _joined(job: JobState, event: ev.NodeJoined) -> None:
    """Record that a node has joined, with the events that its inventory stands for; the node is not suspected now.

    If the node comes back without what it ran, its loss is recorded and judged first.
    """
    if comes_back_empty(job, event):
        lose_node(job, event.node, f"{event.node} came back without what it ran")
        judge_recorded(job)
    for item in join(job, event):
        _record_item(job, item)
    note_heard(job, event.node, job.now)


def _node_lost(job: JobState, event: ev.NodeLeft | ev.NodeGone | ev.NodeSilent) -> None:
    if isinstance(event, ev.NodeLeft):
        lose_node(job, event.node, f"{event.node} left", "it left", asked=True)
        return
    silent = f"not heard for {format_duration(job.graph.options.silent_after_ns)}"
    because = event.cause if isinstance(event, ev.NodeGone) else silent
    lose_node(job, event.node, f"{event.node} lost ({because})", because)


def _record_of_replica(job: JobState, replica: Replica, event: ev.AttemptEvent) -> None:
    match event:
        case ev.ReplicaProgressed() | ev.ReplicaStepped():
            _progressed(job, replica, event)
        case ev.ReplicaSpent():
            pass  # decides nothing: it is recorded for the time accounts
        case ev.ReplicaStarted():
            note_started(job, replica, event)
        case ev.ReplicaStopped():
            note_stopped(job, replica, event)
            job.facts.append(Ended(replica.id))
        case ev.ReplicaReady():
            note_checked(job, replica)
        case ev.ReplicaPublished():
            note_published(job, replica, event)
        case ev.ReplicaAcknowledged():
            note_acknowledged(job, replica, event)
        case ev.ReplicaStartsCold():
            role = job.roles[replica.id.role]
            if not role.is_cold:
                role.is_cold = True
                job.decided(
                    "role_cold",
                    role.spec.name,
                    f"{role.spec.name} starts cold on {replica.node}: {event.detail}",
                    "warning",
                )
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


def _progressed(job: JobState, replica: Replica, event: ev.ReplicaProgressed | ev.ReplicaStepped) -> None:
    """Record a report of steps. Progress is to be further than ever (R8).

    Counted steps are those of one attempt, which may have begun anywhere: only a count that no attempt has reached
    before is sure to be further. A single step is not: a job that merely re-forms may take one each time. Counts do
    not say which member is behind, because they lag.
    """
    world = job.worlds[replica.world]
    if isinstance(event, ev.ReplicaStepped):
        if event.steps > world.counted:
            world.counted, world.progressed = event.steps, True
    else:
        if replica.step <= 0 < event.step:
            note_restore(job, replica, event.step)
        replica.step = event.step
        if event.step > world.step:
            world.step, world.progressed = event.step, True
        if event.step <= 0:
            return  # a script may report at its start that it has done none
    note_first_step(job, world)


def settle(job: JobState, rounds_max: int = SETTLE_ROUNDS_MAX) -> None:
    """Decide all that follows from the state: judge, advance incidents, form worlds, send addresses.

    Each round visits the worlds and roles that the round before has touched, until none is touched. While the job ends,
    only `settle_ending` decides.

    Args:
        job: The state.
        rounds_max: The number of rounds after which the job counts as one that does not settle.

    Raises:
        AssertionError: The rounds do not come to an end, which is a bug.
    """
    if job.facts:
        judge_recorded(job)
    for _ in range(rounds_max):
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
    """Record an item of a node's inventory as the events that may have been lost with the connection."""
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
    """Start the members of a world whose store is open; ignore the store of an earlier generation (R20)."""
    world = job.worlds.get(event.world)
    if world is not None and world.phase == "opening" and world.generation == event.generation and not job.ending:
        world.store_port = event.port
        start_members(job, world)


def _store_lost(job: JobState, event: ev.StoreLost) -> None:
    """Record that the store of a world died: the world is to re-form, and no budget is charged (no user code failed).

    The store of an earlier generation, or of a world that does not open or run, changes nothing.
    """
    world = job.worlds.get(event.world)
    if world is None or world.generation != event.generation or world.store_node is None or job.ending:
        return
    cause = f"the store of {world.name} (generation {world.generation}) died" + (event.detail and f": {event.detail}")
    if world.phase in ("opening", "running"):
        forget_store(job, world)
        job.facts.append(Change("store_lost", world.name, cause, (world.name,), "not counted"))


def _offered(job: JobState, event: ev.CheckpointOffered) -> None:
    """Accept or refuse an offered checkpoint, and answer: only the present generation may publish one (R19).

    An offer of another attempt than the replica's latest gets no answer. An accepted offer that is sent again, because
    the answer was lost, is accepted again and counted once.
    """
    replica = job.replicas.get(event.replica)
    if replica is None or replica.order is None or replica.attempt != event.attempt:
        return
    world = job.worlds[replica.world]
    accepted = replica.is_live and event.generation == world.generation
    reason = "" if accepted else f"generation {event.generation} of {world.name} is over"
    if accepted and world.checkpoint != event:
        world.checkpoint = event
        world.checkpoints += 1
    job.emit(AnswerCheckpoint(replica.order.node, replica.id, event.attempt, event.path, event.step, accepted, reason))


def _expire(job: JobState, due: Due) -> None:
    """Record or decide what follows from a deadline that has come (`deadlines.What` lists them)."""
    match due.what:
        case "admission":
            begin_ending(job, "failed", f"the job could not start in time: {why_not_admitted(job)}")
        case "pending":
            role = job.roles[due.name]
            if role.outcome is not None or closed_gates(job, role) or role.occupied >= role.spec.min_replicas:
                return  # the role waits for no room now; the next time it does, it gets a new deadline
            waited = format_duration(role.spec.pending_timeout_ns)
            why = f"{due.name} was below its minimum for {waited}: {explain(job, role)}"
            begin_ending(job, "failed", why, due.name)
        case "ready":
            _unready(job, _by_name(job, due.name))
        case "arrivals":
            if job.missing:
                job.decided("nodes_missing", "", f"not waiting any longer for {', '.join(job.missing)}", "warning")
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
    """Record a failure of a replica that is not ready in time."""
    spec = job.role_of(replica.id).spec
    why = f"it did not get ready within {format_duration(spec.ready_timeout_ns)}"
    if spec.versions is not None and (stale := why_not_fresh(job, replica)):
        why = f"{why}: {stale}"
    job.note_failure(replica, "unready", why)


def _unfinished(job: JobState, world: World) -> None:
    """Record a hang of the first member that still runs when `finish_timeout` of a closing world is over (R17)."""
    late = next((replica for replica in job.members_of(world) if replica.is_up), None)
    if late is not None:
        timeout = format_duration(job.role_of(late.id).spec.finish_timeout_ns)
        world.hangs = True
        why = f"it did not finish within {timeout} after the first of {world.name}"
        job.note_failure(late, "hang", why)
