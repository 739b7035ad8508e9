"""The gang in macro mode: what control decides about it, from one change of membership to the next.

    opening --> running --> stopping --> [back-off] --> [gated] --> opening        or waiting, below its minimum

    opening   the agent of the first member opens the store of the new generation
    running   from the order to start on: the members start up, then step
    stopping  the members are told to stop
    gated     the gang waits for a role that its gates name
    waiting   the gang is below its minimum, and waits for nodes
    over      the work of the gang is done; the job goes on while another gang has work

Each phase ends by itself at `Job.due` (NEVER: it does not), when `Job.on_due` is called. If nothing else happens
before that time, the function that begins a phase calls `on_due` itself, without a turn of the main loop.

All functions act on a `Job` at the virtual time `now` in ns. They change the job and return nothing unless they say so.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from flowdist.control.incidents.causes import PEER_KINDS
from flowdist.control.incidents.judge import Verdict
from flowdist.graph import FailureKind
from flowdist.sim.macro.ending import complete, fail
from flowdist.sim.macro.generation.start_ups import pace_of, slowest_ns
from flowdist.sim.macro.generation.waiting import give_up_waiting, plan_wait
from flowdist.sim.macro.job import DeferredFailure, Job, Unblamed
from flowdist.sim.macro.joint.parts import count_parts, start_parts, wait_for_parts
from flowdist.sim.macro.result import NEVER

# Failures.


class Failed(NamedTuple):
    """The way in which a member failed: the kind of the failure, and the exit code or the signal."""

    kind: FailureKind
    exit_code: int = 0
    signal: str | None = None


def lose_node(job: Job, node: int, why: str, now: int) -> None:
    """Handle that the controller learns that a node is lost: take its seats away, and restart what ran on it.

    Args:
        job: The job.
        node: The number of the node.
        why: "killed" or "not heard".
        now: The time, in ns.
    """
    job.death_known_at.pop(node, None)
    job.cut_off_since.pop(node, None)
    reason = f"{job.scope.nodes[node]} lost ({why})"
    job.say(now, "gone", job.scope.nodes[node], reason)
    job.last_lost = list(job.seats.on[node])
    has_ended = all(each in job.exited for each in job.last_lost)
    if job.seats.lose(node) and has_ended and (job.notice is not None or job.books.finished):
        # They have stopped because of the notice, or have done their work, so that nothing is lost with the node (R16).
        job.exited = {each: None for each in job.exited if each not in job.last_lost}
        job.late.unheard.difference_update(job.last_lost)
    elif job.last_lost:
        _lose_members(job, node, why, reason, now)
    job.companions.lose_node(node, reason, now)
    is_back = job.connected_at.get(node, now) + job.times.message == now  # it joins at this very time
    if not is_back:
        job.companions.settle(now)
        if job.phase == "running" and not job.scope.beside:
            grow(job, job.result.generations, now)
    # A gang that is stopping waits for the answers of its members, or for the loss of their nodes.
    awaited = any(map(job.awaited_on, job.death_known_at))
    if job.phase == "stopping" and not awaited and job.result.outcome is None:
        if not _has_members_left(job):
            job.due = max([now, job.joint_gone_at, *(job.told(each, now) for each in job.away_members())])
        job.due = max(job.due, now)
        if job.due == now and not is_back:
            job.on_due(job, now)


def _has_members_left(job: Job) -> bool:
    """Return whether a member of the gang, which stops, has not ended by a fault, and its node is not lost."""
    seated = (replica for replica, node in enumerate(job.seats.node_of) if node is not None)
    return any(replica not in job.newcomers and replica not in job.exited for replica in seated)


def _lose_members(job: Job, node: int, why: str, reason: str, now: int) -> None:
    """Decide what the loss of a node with members means for the gang, according to its phase."""
    if job.phase == "opening":
        form(job, now)  # no member had started, so this is no incident
    elif job.phase == "running":
        job.seats.note_loss(node, now)
        restart(job, "node_lost", reason, job.policy.judge("node_lost", now), now)
    elif job.phase == "stopping" and _is_cause(job, node, why, now):
        job.seats.note_loss(node, now)
        _excuse(job, reason, now)
    elif job.phase == "waiting" and job.minima is not None:
        form(job, now)  # another of its roles may be below its minimum now


def fail_replica(job: Job, replica: int, generation: int, how: Failed, now: int) -> None:
    """Handle an agent's report that a member failed: judge the failure, then restart the gang or fail the job.

    A member that knew of a notice has stopped, and not failed (R16); the notice ends with the last member. A failure
    that would fail the job is deferred while it may follow from the loss of another member's node. The report is
    ignored if the gang restarts already, or the member belongs to an earlier generation.

    Args:
        job: The job.
        replica: The index of the member.
        generation: The generation in which it failed.
        how: How it failed.
        now: The time, in ns.
    """
    if job.phase != "running" or generation != job.result.generations:
        return
    kind, notice = how.kind, job.notice
    if notice is not None and now - job.times.message >= notice.heard:
        if not _has_members_left(job):
            notice.finish(now)
        return
    job.payer, job.failed_on = job.policies[job.part_of(replica)[0]], job.seats.node_of[replica]
    verdict = job.payer.judge(kind, now, how.exit_code, how.signal)
    reason = f"{job.name_of(replica)} failed: {kind}"
    ends = verdict.action == "fail"
    job.deferred = _deferred(job, replica, kind, f"{reason}; {verdict.because}") if ends else None
    if job.deferred is not None:
        open_incident(job, kind, reason, now)
        return
    if verdict.counted and _has_suspects(job, replica, kind):
        job.unblamed = Unblamed(replica, kind, now)
    else:
        job.seats.blame(replica, kind, now)
    restart(job, kind, reason, verdict, now)


def restart(job: Job, kind: FailureKind, reason: str, verdict: Verdict, now: int, *, steps_on: bool = False) -> None:
    """Carry out a verdict: fail the job, or open an incident, charged to a budget if the verdict says so.

    The arguments are those of `open_incident`.
    """
    if verdict.action == "fail":
        fail(job, f"{reason}; {verdict.because}", now)
    else:
        open_incident(job, kind, reason, now, level=verdict.level if verdict.counted else None, steps_on=steps_on)


def _deferred(job: Job, replica: int, kind: str, reason: str) -> DeferredFailure | None:
    """Return the failure if it has to wait until the nodes of the other members have answered (R8).

    None if no other node can be its cause: the kind of failure does not allow it, or all members are on this node.
    """
    return DeferredFailure(reason, replica) if _has_suspects(job, replica, kind) else None


def _has_suspects(job: Job, replica: int, kind: str) -> bool:
    """Return whether the failure of a member may follow from the loss of another member's node."""
    node = job.seats.node_of[replica]
    return kind in PEER_KINDS and node is not None and job.seats.taken > len(job.seats.on[node])


def _is_cause(job: Job, node: int, why: str, now: int) -> bool:
    """Return whether the failure that opened the present incident follows from the loss of this node.

    The node has to have died before it could answer that its members have stopped, and not be that of the member that
    failed. The failure has to be one that fails the job or is charged to a budget, and has to be recent enough.

    Args:
        job: The job, whose gang is stopping.
        node: The lost node.
        why: "killed" or "not heard"; the latter allows a longer time since the failure.
        now: The time, in ns.
    """
    if job.dead_since[node] >= job.ends_on(node) or job.incident_kind not in PEER_KINDS or node == job.failed_on:
        return False
    if why == "killed" and all(replica in job.exited for replica in job.last_lost):
        return False  # its agent has reported their end
    if job.late.joined.get(node, 0) > job.opened or (now > job.answer_due and job.is_cleared(node)):
        return False
    if job.deferred is not None:
        return True
    window_ns = job.options.silent_after_ns if why == "not heard" else job.options.cause_window_ns
    return job.is_counted and now - job.opened <= window_ns


def _excuse(job: Job, reason: str, now: int) -> None:
    """Turn the open incident, in which the gang stops already, into the loss of a node: take its charge back.

    A deferred failure is dropped. The loss counts as a membership change, which may fail the job (R8).
    """
    if job.deferred is None:
        job.payer.excuse(job.opened)
    job.unblamed = None
    job.note_incident("node_lost", reason, now)
    job.backoff_ns, job.backoff_until, job.is_counted = 0, now, False
    job.deferred, job.on_due, job.due = None, stopped, max(job.due, job.gone_at)
    note_change(job, "node_lost", reason, now)


# Incidents.


def note_change(job: Job, kind: str, reason: str, now: int) -> None:
    """Count a membership change of the gang, and fail the job if it is one too many in a row (R8)."""
    too_many = job.policy.note_change(kind, reason, healthy=job.is_healthy(now))
    if too_many:
        fail(job, too_many, now)
    job.books.progressed = False


def open_incident(
    job: Job, kind: str, reason: str, now: int, *, level: int | None = None, steps_on: bool = False
) -> None:
    """Open an incident, and stop all members of the gang, before any of them starts again (R6).

    The incident is charged to a budget, or counts as a membership change unless its failure is deferred. The job fails
    instead if that is one change too many in a row (R8). A notice to leave a node has no effect any more.

    Args:
        job: The job.
        kind: A failure kind, or a kind of change in which no member has failed, such as "joined".
        reason: One line for people.
        now: The time, in ns.
        level: The level of the budget that is charged: 0 is the role's own. None: no budget is charged.
        steps_on: All members step until they are stopped, because none of them has failed or was lost.
    """
    books, grows = job.books, kind in ("joined", "scaled") and bool(job.newcomers)
    if job.notice is not None:
        job.notice.drop()
    job.note_incident(kind, reason, now)
    job.incident_kind, job.opened = kind, now
    if books.begun is None:
        books.move("re-formation", books.active, now)
    _plan_halt(job, grows, steps_on, now)
    job.reported = books.reported(now - job.times.message)
    job.backoff_ns = job.payer.charge(level, now) if level is not None else 0
    job.backoff_until, job.is_counted = now + job.backoff_ns, level is not None
    lost = job.last_lost if kind == "node_lost" else []  # they were members as well
    job.outsiders = [replica for replica in job.seats.vacant if replica not in lost] if job.backoff_ns else []
    if level is None and job.deferred is None:
        note_change(job, kind, reason, now)
        if job.result.outcome is not None:
            return
    _stop_members(job, books.active if grows else job.seats.taken, now)
    job.joint_gone_at = job.companions.stop(now)
    job.due = max(job.due, job.joint_gone_at)
    if job.due < job.quiet_until() and not job.backoff_ns:
        job.on_due(job, job.due)


def _plan_halt(job: Job, grows: bool, steps_on: bool, now: int) -> None:
    """Set when the members that are ordered to stop now have stopped, and until when they step if they do."""
    job.stopped_at = job.spawned(now) + job.stop_ns_of(job.incident_kind) - job.times.message
    job.is_done = grows and job.books.begun is not None and job.due <= job.stopped_at
    if job.is_done:  # they exit by themselves before they are stopped
        job.stopped_at = job.due
    job.halt_at = job.stopped_at if grows or steps_on else None
    if job.halt_at is not None and job.books.begun is None and job.due < job.halt_at:
        job.at(job.due, partial(job.begin_late, job.result.generations))


def _stop_members(job: Job, members: int, now: int) -> None:
    """Begin the phase "stopping": order all members to stop, and set `due` to when the last of them is gone.

    A member on a dead node does not answer; it is gone when the controller learns that the node is lost.
    """
    was_up = job.phase == "running"
    dead = [(job.awaited_on(node), known) for node, known in job.death_known_at.items()]
    away = job.away_members() if was_up else []
    heard = len(job.exited) - len(job.late.unheard)
    others = members - heard - sum(count for count, _ in dead) - sum(map(job.awaited_on, away))
    ends = job.stopped_at + job.times.message
    job.ran_from = job.formed
    job.phase, job.formed = "stopping", NEVER
    job.due, job.on_due = ends if others and was_up else now, stopped
    if not others:
        job.stopped_at = min(job.stopped_at, now)
    grace_ns = job.grace_ns_of(job.incident_kind)
    job.late.stopped = {node: job.told(node, now) for node in away}
    late = [job.gone_on(node, told, grace_ns) for node, told in job.late.stopped.items()]
    if late and not others:
        job.stopped_at = min(late) - job.times.message
        job.halt_at = job.stopped_at if job.halt_at is not None else None
    known = max((known for count, known in dead if count), default=0) if was_up else 0
    job.gone_at = max([job.due, known, *late])
    if job.deferred is not None:  # at the answer deadline no node that is heard is a suspect any more (R8)
        job.due, job.on_due = min(job.due, now + job.options.suspect_after_ns), _judge_deferred
        job.due = max([job.due, known, *job.late.stopped.values()])
    else:
        job.due = job.gone_at


def _judge_deferred(job: Job, now: int) -> None:
    """Fail the job for its deferred failure: all other nodes have answered, or are heard, so none is the cause."""
    assert job.deferred is not None
    if job.seats.node_of[job.deferred.replica] is not None:
        job.seats.blame(job.deferred.replica, job.incident_kind, job.opened)
    fail(job, job.deferred.reason, now)


def stopped(job: Job, now: int) -> None:
    """Handle that all members are gone: free seats on nodes that they leave, then begin the back-off or form again."""
    job.halt(job.halt_at or now, done=job.is_done)
    job.halt_at, job.ran_from, job.is_done = None, NEVER, False
    blamed, job.unblamed = job.unblamed, None
    if blamed is not None and job.seats.node_of[blamed.replica] is not None:
        job.seats.blame(blamed.replica, blamed.kind, blamed.at)
    job.seats.vacate_leaving()
    job.seats.move_away(now)
    if job.backoff_until > now:
        job.phase, job.due, job.on_due = "back-off", job.backoff_until, _reform
    else:
        _reform(job, now)


def _reform(job: Job, now: int) -> None:
    """Start the services that restart with the gang, and form a generation as soon as the gates are open."""
    job.phase = "gated"
    job.companions.start(now)
    form(job, now)


# Formation.


def form(job: Job, now: int) -> None:
    """Try to begin a new generation of the gang: seat its replicas on free nodes, and open its store.

    While a gate of the gang is closed, no replica is seated and the phase of the job becomes "gated". With fewer seated
    replicas than the minimum it becomes "waiting", and an action is planned that fails the job when `pending_timeout`
    has passed (R12). Otherwise the generation is counted, and the phase becomes "opening".
    """
    seats, books = job.seats, job.books
    if not job.companions.let_gang_form(now):
        if job.give_up_at is not None and job.phase == "waiting":
            job.at(job.give_up_at, partial(give_up_waiting, job))
        job.phase, job.due, job.formed = "gated", NEVER, NEVER
        return
    seats.drop_surplus()
    if seats.free and seats.vacant:
        seats.fill(now)
    if not seats.has_minimum:
        if job.minima is not None:
            plan_wait(job, wait_for_parts(job, job.minima, now))
            return
        if job.give_up_at is None and books.bucket == "re-formation":
            books.move("waiting", 0, now)
        plan_wait(job, now + job.role.pending_timeout_ns if job.give_up_at is None else job.give_up_at)
        return
    if job.give_up_at is not None:
        job.give_up_at = None
        count_parts(job, now)
        books.move("re-formation", job.minima.re_forming if job.minima is not None else job.size_max, now)
    seats.drop_part_of_block()
    job.grows_at_once = False
    job.result.generations += 1
    job.phase, job.due, job.on_due = "opening", now + job.times.open, _start
    first = job.first_node() if job.death_known_at or job.cut_off_since else None
    if first is not None and not job.alive[first]:
        job.due = NEVER  # a dead agent opens no store; `lose_node` forms again
    elif first is not None:
        job.due = job.told(first, now) + job.times.open
        if job.due < job.quiet_until():
            _start(job, job.due)
    elif job.due < job.quiet_until():
        _start(job, job.due)


def _start(job: Job, now: int) -> None:
    """Begin the phase "running": the store is open, so the controller orders all members to start."""
    seats, books, times, load = job.seats, job.books, job.times, job.role.workload
    new = sum(seats.node_of[replica] is not None for replica in job.outsiders) if job.backoff_ns else 0
    start_parts(job, now)
    books.start(seats.taken, job.backoff_ns, now, new=new)
    cold, warm = _start_ups(job, now + times.up)
    job.size_max = max(job.size_max, seats.taken)
    job.exited.clear()
    job.late.unheard.clear()
    job.slow.clear()
    job.peers_end_at = NEVER
    job.newcomers = set()
    seats.fresh.clear()
    job.phase, job.is_incomplete, job.is_deaf = "running", False, False
    number, size = job.result.generations, f"{seats.taken} of at most {seats.target}"
    job.say(now, "forms", str(number), f"{job.role.name}: generation {number} forms with {size}")
    if any(seats.on[node] for node in job.death_known_at):  # members on dead nodes never run; `lose_node` follows
        job.due = job.formed = NEVER
        return
    job.late.started = {node: job.told(node, now) for node in job.away_members()}
    job.formed = max([now, *job.late.started.values()]) + times.started
    generation, workers = job.result.generations, seats.taken * job.role.procs
    startup_ns = slowest_ns(load, cold, warm, job.seed, job.role.name, generation)
    job.pace = pace_of(load, workers, job.seed, job.role.name, generation)
    books.restore_ns = load.restore_ns_after(job.memory.lost(now + times.up))
    begins = max([now + startup_ns, *(told + job.startup_on(node, now) for node, told in job.late.started.items())])
    begins += times.up
    plan_begin(job, begins + (books.restore_ns if books.durable else 0), job.formed, ordered=now)
    if job.is_counted:
        job.payer.last_counted_ns, job.is_counted = job.formed, False
    if not job.is_alone:
        job.at(job.formed, job.companions.settle)
    elif seats.has_block:
        grow(job, job.result.generations, job.formed)


def _start_ups(job: Job, now: int) -> tuple[int, int]:
    """Return how many members begin a cold start-up at `now`, and how many a warm one; those on dead nodes do not."""
    if job.role.workload.warm_startup_ns is None:
        return job.seats.taken, 0
    seated = [node for node in job.seats.node_of if node is not None]
    return job.warm.split([node for node in seated if job.alive[node]], now)


def plan_begin(job: Job, at: int, formed: int, ordered: int) -> None:
    """Set the job to a generation that starts up. `job.late.started` says which nodes get the order late.

    Args:
        job: The job.
        at: When the last member has started up, so that the gang begins to step (ns).
        formed: When the controller knows that all members run (ns).
        ordered: When the members were ordered to start (ns).
    """
    job.phase, job.formed, job.give_up_at, job.is_incomplete = "running", formed, None, False
    job.started_at, job.late.heard = ordered, {}
    job.seats.fresh.clear()
    job.due, job.on_due = at, begin


def begin(job: Job, now: int) -> None:
    """Begin to work: the last member has started up. The phase ends when all work is done."""
    job.memory.begin(job.seats.node_of)
    job.due, job.on_due = job.books.begin(now, is_stalled=bool(job.away), pace=job.slowest), complete


# Growth.


def add_node(job: Job, node: int, now: int) -> None:
    """Handle that a node joined, for the first time or again: roles that wait for its seats start, form or grow.

    Nothing happens if it has joined before, because two faults bring it back.
    """
    if job.alive[node]:
        return
    job.alive[node] = True
    job.seats.join(node, now)
    job.companions.add_node(node, now)
    job.say(now, "joined", job.scope.nodes[node], f"{job.scope.nodes[node]} joined")
    if job.is_alone:
        take_room(job, now)
    job.companions.settle(now)


def take_room(job: Job, now: int) -> None:
    """Let a gang that waits try to form, and a gang that runs try to grow; nothing in other phases."""
    if job.phase in ("waiting", "gated"):
        form(job, now)
    elif job.phase == "running":
        grow(job, job.result.generations, now)


def grow(job: Job, generation: int, now: int) -> None:
    """Restart the gang with more members if there are free seats for replicas without one (R13).

    Before the end of the cool-down, which an order of the operator skips, the attempt is scheduled again for then.
    Nothing happens if the generation is not
    the present one, does not run in full, or leaves a node.
    """
    seats, formed = job.seats, job.formed
    if job.phase != "running" or generation != job.result.generations or formed == NEVER:
        return
    if not seats.has_block or job.notice is not None or job.books.finished:
        return
    healthy, is_first = job.is_healthy(max(now, formed)), generation == 1
    wait = 0 if job.grows_at_once else job.policy.growth_wait_ns(healthy=healthy, is_first=is_first)
    earliest = max(formed, formed + wait)
    if now < earliest:
        job.at(earliest, None, -2 - generation)
        return
    before = set(seats.vacant)
    if seats.fill(now):
        job.newcomers = before.difference(seats.vacant)
        kind = "scaled" if job.grows_at_once else "joined"
        open_incident(job, kind, f"room for {seats.taken - job.books.active} more", now)
