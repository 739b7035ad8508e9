"""The controller: it records each event as a fact, then settles the job from its state alone.

    controller = Controller(graph, known_nodes=("node0", "node1"))
    effects = controller.handle(NodeJoined(...), now=0)

The caller passes the time: `now` is in nanoseconds since the start of the job and does not decrease.

To record is to write down what has happened: phases, ports, progress, failures, losses, requests (`recording.py`). To
settle is to decide what follows, in one order: judge the facts, advance incidents, judge success, form worlds, publish
addresses.
"""

from __future__ import annotations

from typing import assert_never

from flowdist.control.incidents.advancing import advance
from flowdist.control.incidents.ending import begin_ending, judge_success, settle_ending
from flowdist.control.incidents.hangs import judge_hang
from flowdist.control.incidents.judging import judge_answer, judge_failure, judge_heard, judge_loss, judge_unanswered
from flowdist.control.incidents.recovery import note_first_step, open_incident
from flowdist.control.incidents.restart_set import closure
from flowdist.control.job.deadlines import Due
from flowdist.control.job.facts import Change, Connected, Ended, Fact, Failure, Loss
from flowdist.control.job.initial_state import new_job
from flowdist.control.job.state import JobState, Replica, Role, World
from flowdist.control.membership.addresses import update_addresses
from flowdist.control.membership.attempts import judge_end
from flowdist.control.membership.drain import finish_notice, follow_notice, preempt
from flowdist.control.membership.formation import (
    abandon_openings,
    closed_gates,
    form_worlds,
    start_members,
    touch_dependents,
    why_not_admitted,
)
from flowdist.control.membership.nodes import clear_gpu, give_up_node, greet
from flowdist.control.membership.operator import apply_operation
from flowdist.control.membership.samples import count_samples
from flowdist.control.membership.versions import judge_readiness, why_not_fresh
from flowdist.control.placement.placement import explain
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import AnswerCheckpoint, Decided, Effect
from flowdist.control.protocol.ids import NodeName, replica_of
from flowdist.control.recording import record
from flowdist.control.snapshots.copies import hold
from flowdist.control.snapshots.keeping import keep_snapshots
from flowdist.graph import RoleGraph, format_duration

SETTLE_ROUNDS_MAX = 1000  # a job settles in a few rounds: more means a bug


class Controller:
    """Pure state machine that makes all decisions about one job: events in, effects out.

    The first start waits for `known_nodes`, for `join_window` at most after the first node has joined. A name of
    `ids.unnamed_nodes` among them stands for a node of any name.
    """

    def __init__(self, graph: RoleGraph, known_nodes: tuple[NodeName, ...] = ()) -> None:
        self.state = new_job(graph, known_nodes)
        patience = max(role.pending_timeout_ns for role in graph.roles)
        self.state.due.set(Due("admission"), patience)
        for world in self.state.worlds.values():
            self.state.touch(world)

    def handle(self, event: ev.Event, now: int) -> list[Effect]:
        """Record an event, settle the job, and return what the controller wants done, in order.

        Deadlines that are due by `now`, in ns since the start of the job and never earlier than before (ValueError),
        are handled before the event, each by itself. Once the job is over, nothing is recorded and there are no
        effects.
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
                _judge_recorded(job)
        record(job, event)
        settle(job)
        return job.effects

    def deadline(self) -> int | None:
        """Return when `handle(TimePassed(), now)` has to be called at the latest, in ns; None: never."""
        return self.state.due.next() if self.state.outcome is None else None


def _judge_recorded(job: JobState) -> None:
    """Judge the recorded facts in order, and clear the list; a fact that follows from one comes before the next."""
    facts, job.facts = job.facts, []
    for fact in facts:
        _judge(job, fact)
        if job.facts:
            _judge_recorded(job)


def _judge(job: JobState, fact: Fact) -> None:
    match fact:
        case ev.CheckpointOffered():  # the first four come most often, and each comparison before them costs
            _offered(job, fact)
        case ev.CopyHeld():
            hold(job, fact)
        case ev.ReplicaProgressed() | ev.ReplicaStepped():
            note_first_step(job, job.worlds[job.replicas[fact.replica].world])
        case Decided():
            job.emit(fact)
        case Loss():
            abandon_openings(job, fact.unseated)
            judge_loss(job, fact)
        case Failure() | Change() | Ended() | ev.NodeHeard() if job.ending is not None:
            pass  # what fails while the job ends changes nothing: losses alone are shown to the user
        case Failure():
            judge_failure(job, fact)
        case Change():
            open_incident(job, fact.kind, fact.root, fact.reason, fact.because, closure(job, list(fact.worlds)))
        case Ended():
            judge_answer(job, job.replicas[fact.replica])
        case ev.NodeHeard():
            judge_heard(job, fact)
        case Connected():
            greet(job, fact)
        case ev.ReplicaExited() | ev.ReplicaStopped():
            judge_end(job, fact)
        case ev.ReplicaStarted() | ev.ReplicaReady() | ev.ReplicaPublished() | ev.ReplicaAcknowledged():
            judge_readiness(job, fact)
        case ev.StepTold() | ev.ReplicaLeftStep():
            follow_notice(job, job.worlds[job.replicas[fact.replica].world])
        case ev.ReplicaUnkillable():
            give_up_node(job, job.replicas[fact.replica])
        case ev.GpuFailed():
            clear_gpu(job, fact)
        case ev.NodePreempted():
            preempt(job, fact)
        case ev.StoreOpened():
            _store_opened(job, fact)
        case _:
            apply_operation(job, fact)


def settle(job: JobState, rounds_max: int = SETTLE_ROUNDS_MAX) -> None:
    """Decide all that follows from the state: judge facts, advance incidents, form worlds, send addresses.

    Each round visits the worlds and roles that the round before has touched, until none is touched. While the job ends,
    only `settle_ending` decides. After `rounds_max` rounds it is a bug, an AssertionError.
    """
    if job.facts:
        _judge_recorded(job)
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
            keep_snapshots(job, names)
        if job.ending is None:  # forming ends the job when a world waits for a role that was ignored
            update_addresses(job, roles)
    raise AssertionError("the job does not settle")


def _take_roles(job: JobState) -> list[Role]:
    roles = [job.roles[name] for name in job.touched_roles]
    job.touched_roles.clear()
    if len(roles) > 1:
        roles.sort(key=lambda role: role.order)
    return roles


def _store_opened(job: JobState, event: ev.StoreOpened) -> None:
    """Start the members of a world whose store is open; ignore the store of an earlier generation (R20)."""
    world = job.worlds.get(event.world)
    if world is not None and world.phase == "opening" and world.generation == event.generation and not job.ending:
        world.store_port = event.port
        start_members(job, world)


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
        count_samples(world, event.generation, event.step)
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
            _unready(job, job.replicas[replica_of(due.name)])
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


def _unready(job: JobState, replica: Replica) -> None:
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
