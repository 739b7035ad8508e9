"""The gang in macro mode: what control decides about it, from one change of membership to the next.

Phases: opening (the first member's agent opens the new store), running (from the order to start on), stopping (then
maybe a back-off, and opening again), waiting (below the minimum, for nodes), over. Each ends by itself at `Job.due`
(NEVER: it does not), by `Job.on_due`, which the function that begins a phase calls itself, without a turn of the main
loop, if nothing happens before. Functions change a `Job` at the virtual time `now` (ns).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from flowdist.control.rules import (
    PEER_KINDS,
    Verdict,
    exceeds_row,
    growth_wait_ns,
    next_free_row,
    row_text,
    stops_with_grace,
)
from flowdist.graph import FailureKind, format_duration
from flowdist.sim.macro.books import NEVER
from flowdist.sim.macro.job import Job
from flowdist.sim.macro.start_ups import slowest_ns, slowest_pace

# Failures.


class Failed(NamedTuple):
    """The way in which a member failed: the kind of the failure, and the exit code or the signal."""

    kind: FailureKind
    exit_code: int = 0
    signal: str | None = None


def lose_silent(job: Job, now: int) -> None:
    """Handle that all nodes that become silent at this time are lost: one after the other, by name."""
    silent = [node for node, at in job.death_known_at.items() if at == now and job.cut_off.get(node) == now]
    for node in sorted(silent, key=lambda node: job.scope.nodes[node]):
        lose_node(job, node, "not heard", now)


def lose_node(job: Job, node: int, why: str, now: int) -> None:
    """Handle that the controller learns that a node is lost (`why`: "killed" or "not heard").

    Nothing happens if it learns that at another time, since the node was killed while it was cut off.
    """
    if job.death_known_at.get(node) != now:
        return
    del job.death_known_at[node]
    reason = f"{job.scope.nodes[node]} lost ({why})"
    job.say(now, "gone", job.scope.nodes[node], reason)
    job.last_lost = list(job.seats.on[node])
    has_ended = all(each in job.exited for each in job.last_lost)
    if job.seats.lose(node) and has_ended and job.books.finished:
        # They have done their work, so that nothing is lost with the node (R16).
        job.exited = {each: None for each in job.exited if each not in job.last_lost}
        job.unheard.difference_update(job.last_lost)
    elif job.last_lost:
        _lose_members(job, node, reason, now)
    is_back = job.connected_at.get(node, now) + job.times.message == now  # it joins at this very time
    if not is_back and job.phase == "running":
        grow(job, job.result.generations, now)
    # A gang that is stopping waits for the answers of its members, or for the loss of their nodes.
    awaited = any(map(job.awaited_on, job.death_known_at))
    if job.phase == "stopping" and not awaited:
        job.due = max(job.due, now) if job.has_members_left else now
        if job.due == now and not is_back:
            job.on_due(job, now)


def _lose_members(job: Job, node: int, reason: str, now: int) -> None:
    """Decide what the loss of a node with members means for the gang, according to its phase."""
    if job.phase in ("opening", "waiting"):
        form(job, now)  # no member runs, so this is no incident
    elif job.phase == "running":
        job.seats.note_loss(node, now)
        _restart(job, "node_lost", reason, job.policy.judge("node_lost", now), now)
    elif job.phase == "stopping" and _is_cause(job, node, now):
        job.seats.note_loss(node, now)
        _excuse(job, reason, now)


def fail_replica(job: Job, replica: int, generation: int, how: Failed, now: int) -> None:
    """Handle an agent's report that a member failed in `generation`: restart the gang, or fail the job.

    The latter is deferred while the failure may follow from the loss of another member's node (R8).
    """
    if job.phase != "running" or generation != job.result.generations:
        return
    kind, node = how.kind, job.seats.node_of[replica]
    assert node is not None
    job.failed_on, job.deferred, job.unblamed = node, "", None
    verdict = job.policy.judge(kind, now, how.exit_code, how.signal)
    reason = f"{job.role.name}/{replica} failed: {kind}"
    has_suspects = _has_suspects(job, node, kind, verdict, now)
    if has_suspects and (verdict.action == "fail" or verdict.counted):
        job.unblamed = replica
    if has_suspects and verdict.action == "fail":
        job.deferred = f"{reason}; {verdict.because}"
        open_incident(job, kind, reason, now)
        return
    if job.unblamed is None:
        job.seats.blame(replica, kind, now)
    _restart(job, kind, reason, verdict, now)


def _has_suspects(job: Job, node: int, kind: FailureKind, verdict: Verdict, now: int) -> bool:
    """Return whether the failure of a member on this node may follow from the loss of another member's node (R8)."""
    if kind in PEER_KINDS:
        return job.seats.taken > len(job.seats.on[node])
    if verdict.action == "fail" and job.role.restart is not None and not verdict.exhausted:
        return False  # the rule that says so would decide after the loss of a node, too (R9)
    return any(each != node and job.members_on(each) and job.is_suspected(each, now) for each in job.death_known_at)


def _restart(job: Job, kind: FailureKind, reason: str, verdict: Verdict, now: int) -> None:
    """Carry out a verdict: fail the job, or open an incident, charged to a budget if the verdict says so."""
    if verdict.action == "fail":
        fail(job, f"{reason}; {verdict.because}", now)
    else:
        open_incident(job, kind, reason, now, level=verdict.level if verdict.counted else None)


def _is_cause(job: Job, node: int, now: int) -> bool:
    """Return whether the failure that opened the present incident follows from the loss of this node.

    The node then died before it could answer that its members have stopped. The failure has to fail the job or be
    charged to a budget, and be recent: the loss of a node that was cut off is known later than that of one that died at
    once.
    """
    if job.dead_since[node] >= job.stopped_at or node == job.failed_on:
        return False
    explains_any = job.incident_kind == "oom" and job.is_suspected(node, job.opened)
    if job.incident_kind not in PEER_KINDS and not explains_any:
        return False
    was_silent = now > job.dead_since[node] + job.times.proof
    if not was_silent and all(replica in job.exited for replica in job.last_lost):
        return False  # its agent has reported their end
    if now > job.answer_due and job.is_cleared(node):
        return False
    if job.deferred:
        return True
    window_ns = job.options.silent_after_ns if was_silent else job.options.cause_window_ns
    return job.is_counted and now - job.opened <= window_ns


def _excuse(job: Job, reason: str, now: int) -> None:
    """Turn the open incident, in which the gang stops already, into the loss of a node: that is judged instead."""
    if not job.deferred:
        job.policy.excuse(job.opened)
    job.unblamed, job.deferred, job.on_due = None, "", _stopped
    job.await_stop()
    verdict = job.policy.judge("node_lost", now)
    if verdict.action == "fail":
        fail(job, f"{reason}; {verdict.because}", now)
        return
    job.note_incident("node_lost", reason, now)
    job.incident_kind = "node_lost"
    _charge(job, "node_lost", reason, verdict.level if verdict.counted else None, now)


# Incidents.


def _charge(job: Job, kind: str, reason: str, level: int | None, now: int) -> None:
    """Charge the open incident to a budget, or count it as a membership change (R8); if it is deferred, neither."""
    job.backoff_ns = job.policy.charge(level, now) if level is not None else 0
    job.backoff_until, job.is_counted = now + job.backoff_ns, level is not None
    lost = job.last_lost if kind == "node_lost" else []  # they were members as well
    job.outsiders = [replica for replica in job.seats.vacant if replica not in lost] if job.backoff_ns else []
    if level is None and not job.deferred:
        job.free_row = next_free_row(job.free_row, job.is_healthy(now))
        if exceeds_row(job.free_row, kind, job.options):
            fail(job, row_text(job.role.name, job.free_row, job.options, reason), now)
        job.books.progressed = False


def open_incident(job: Job, kind: str, reason: str, now: int, *, level: int | None = None) -> None:
    """Open an incident, and stop all members of the gang before any of them starts again (R6).

    It is charged to the budget of `level` (0: the role's own), or is a membership change unless its failure is
    deferred; one too many in a row fails the job (R8). In a change of the kind "joined" all step until they are
    stopped.
    """
    books, grows = job.books, kind == "joined"
    job.note_incident(kind, reason, now)
    job.incident_kind, job.opened = kind, now
    if job.is_counted:  # the incident before, in which the gang has not formed, closes
        job.policy.last_counted_ns = now
    if books.begun is None:
        books.move("re-formation", books.active, now)
    _plan_halt(job, now, grows=grows)
    job.reported = books.reported(now - job.times.message)
    _charge(job, kind, reason, level, now)
    if job.result.outcome is not None:
        return
    _stop_members(job, books.active if grows else job.seats.taken, now)
    if job.due < job.quiet_until() and not job.backoff_ns:
        job.on_due(job, job.due)


def _plan_halt(job: Job, now: int, *, grows: bool) -> None:
    """Set when the members that are ordered to stop now have stopped, and until when they step if they do."""
    grace_ns = job.role.grace_ns if stops_with_grace(job.incident_kind) else job.role.stop_grace_ns
    job.stopped_at = job.spawned(now) + job.stops_within(grace_ns) - job.times.message
    if not job.live_members:  # the order does not reach them, so that they step until they are fenced
        job.stopped_at = min(job.workers_end_at[node] for node in job.silent_nodes)
    job.is_done = grows and job.books.begun is not None and job.due <= job.stopped_at
    if job.is_done:  # they exit by themselves before they are stopped
        job.stopped_at = job.due
    job.halt_at = job.stopped_at if grows else None
    if job.halt_at is not None and job.books.begun is None and job.due < job.halt_at:
        job.at(job.due, partial(job.begin_late, job.result.generations))


def _stop_members(job: Job, members: int, now: int) -> None:
    """Begin the phase "stopping", until the last member is gone: on a dead node, when its loss is known."""
    dead = [(job.awaited_on(node), known) for node, known in job.death_known_at.items()]
    others = members - (len(job.exited) - len(job.unheard)) - sum(count for count, _ in dead)
    ends = job.stopped_at + job.times.message if others else now
    if not others:
        job.stopped_at = min(job.stopped_at, now)
    job.ran_from, job.formed = job.formed, NEVER
    known = max((known for count, known in dead if count), default=0)
    job.gone_at = max(ends, known)
    job.phase, job.due, job.on_due = "stopping", job.gone_at, _stopped
    if job.deferred:  # at the answer deadline no node that is heard is a suspect any more (R8)
        job.due, job.on_due = max(min(ends, now + job.options.suspect_after_ns), known), _judge_deferred


def _judge_deferred(job: Job, now: int) -> None:
    """Fail the job for its deferred failure: all other nodes have answered, or are heard, so none is the cause."""
    _blame(job)
    fail(job, job.deferred, now)


def _blame(job: Job) -> None:
    """Count the failure of the open incident against the member's node, if that is still there (R22)."""
    replica, job.unblamed = job.unblamed, None
    if replica is not None and job.seats.node_of[replica] is not None:
        job.seats.blame(replica, job.incident_kind, job.opened)


def _stopped(job: Job, now: int) -> None:
    """Handle that all members are gone: begin the back-off, or form again."""
    job.halt(job.halt_at or now, done=job.is_done)
    job.halt_at, job.ran_from, job.is_done = None, NEVER, False
    _blame(job)
    job.seats.move_away(now)
    if job.backoff_until > now:
        job.phase, job.due, job.on_due = "back-off", job.backoff_until, form
    else:
        form(job, now)


# Formation.


def form(job: Job, now: int) -> None:
    """Seat the gang on free nodes, count a new generation, and open its store.

    Below its minimum it waits for nodes, and after `pending_timeout` the job fails (R12).
    """
    seats, books = job.seats, job.books
    if seats.free and seats.vacant:
        seats.fill(now)
    if not seats.has_minimum:
        if job.give_up_at is None:
            job.give_up_at = now + job.role.pending_timeout_ns
            if books.bucket == "re-formation":
                books.move("waiting", 0, now)
        job.phase, job.formed = "waiting", NEVER
        job.due, job.on_due = job.give_up_at, _give_up
        return
    if job.give_up_at is not None:
        job.give_up_at, job.outsiders = None, []
        books.move("re-formation", job.size_max, now)  # all that have ever started
    seats.drop_part_of_block()
    job.result.generations += 1
    job.phase, job.due, job.on_due = "opening", now + job.times.open, _start
    first = job.first_node() if job.death_known_at else None
    if first is not None and not job.alive[first]:
        job.due = NEVER  # a dead agent opens no store; `lose_node` forms again
    elif job.due < job.quiet_until():
        _start(job, job.due)


def _give_up(job: Job, now: int) -> None:
    fail(job, f"{job.role.name} was below its minimum for {format_duration(job.role.pending_timeout_ns)}", now)


def _start(job: Job, now: int) -> None:
    """Begin the phase "running": the store is open, so the controller orders all members to start."""
    seats, books, times, load = job.seats, job.books, job.times, job.role.workload
    new = sum(seats.node_of[replica] is not None for replica in job.outsiders) if job.backoff_ns else 0
    books.start(seats.taken, job.backoff_ns, now, new=new)
    living = (node for _, node in seats.seated if job.alive[node])
    cold, warm = job.memory.split(seats.taken, living, now + times.up)
    job.size_max = max(job.size_max, seats.taken)
    job.exited.clear()
    job.unheard.clear()
    job.slow.clear()
    job.peers_end_at = NEVER
    job.newcomers = set()
    seats.fresh.clear()
    job.phase, job.is_deaf, job.started_at = "running", False, now
    number, size = job.result.generations, f"{seats.taken} of at most {job.role.max_replicas}"
    job.say(now, "forms", str(number), f"{job.role.name}: generation {number} forms with {size}")
    if any(seats.on[node] for node in job.death_known_at):  # members on dead nodes never run; `lose_node` follows
        job.due = job.formed = NEVER
        return
    job.formed = now + times.started
    startup_ns = slowest_ns(load, cold, warm, job.seed, job.role.name, number)
    job.pace = slowest_pace(load, seats.taken * job.role.procs, job.seed, job.role.name, number)
    books.restore_ns = job.memory.restore_ns(now + times.up)
    job.due = now + times.up + startup_ns + (books.restore_ns if books.durable else 0)
    job.on_due = _begin
    job.before_start = job.is_counted, job.policy.last_counted_ns
    if job.is_counted:
        job.policy.last_counted_ns, job.is_counted = job.formed, False
    if seats.has_block:
        grow(job, number, job.formed)


def _begin(job: Job, now: int) -> None:
    """Begin to work: the last member has started up. The phase ends when all work is done."""
    job.due, job.on_due = job.begin_work(now), complete


# Growth.


def add_node(job: Job, node: int, now: int) -> None:
    """Handle that a node joined, now or again, unless it is there: the gang tries to form or to grow."""
    if job.alive[node]:
        return
    job.alive[node] = True
    job.cut_off.pop(node, None)
    job.seats.join(node, now)
    job.say(now, "joined", job.scope.nodes[node], f"{job.scope.nodes[node]} joined")
    if job.phase == "waiting":
        form(job, now)
    elif job.phase == "running":
        grow(job, job.result.generations, now)


def grow(job: Job, generation: int, now: int) -> None:
    """Restart the gang with more members if there are seats (R13): after its cool-down, if it then runs in full."""
    seats, formed = job.seats, job.formed
    if job.phase != "running" or generation != job.result.generations or formed == NEVER:
        return
    if not seats.has_block or job.books.finished:
        return
    healthy, row = job.is_healthy(max(now, formed)), job.free_row
    wait_ns = growth_wait_ns(job.role.cooldown_ns, row, job.options, healthy=healthy, is_first=generation == 1)
    earliest = formed + wait_ns
    if now < earliest:
        job.at(earliest, partial(grow, job, generation))
        return
    before = set(seats.vacant)
    if seats.fill(now):
        job.newcomers = before.difference(seats.vacant)
        open_incident(job, "joined", f"room for {seats.taken - job.books.active} more", now)


def complete(job: Job, now: int) -> None:
    """Note that the work of the gang is done; the controller learns of it later, see `_succeed`.

    The agent of a node that is cut off cannot report it before it fences: that node is lost, and all start again.
    """
    job.halt(now, done=True)
    told = now + job.times.message
    silent = job.silent_nodes
    job.workers_end_at.update(dict.fromkeys(silent, now))
    if silent:
        job.books.finished = (job.live_members, told) if job.live_members else None
        lost = {replica for node in silent for replica in job.seats.on[node]}
        job.exited.update(dict.fromkeys(replica for replica, _ in job.seats.seated if replica not in lost))
        job.due = NEVER
        return
    job.phase, job.due, job.on_due = "over", told, _succeed


def _succeed(job: Job, now: int) -> None:
    """Handle the reports that the work of the gang is done: the job ends with success."""
    job.books.move("done", job.role.max_replicas, now)
    _end(job, "succeeded", f"every primary task has succeeded ({job.role.name})", now)


def fail(job: Job, reason: str, now: int) -> None:
    """End the job, unless it has ended, with failure, and stop everything that runs: nothing steps any more."""
    if job.result.outcome is not None:
        return
    books = job.books
    if job.phase == "waiting" and books.bucket == "waiting":
        books.move("re-formation", job.size_max, now)  # the gang waits for nodes no longer
    elif books.bucket not in ("waiting", "done"):
        books.move("done", books.active, now)
    _end(job, "failed", reason, _last_end(job, now))


def _last_end(job: Job, now: int) -> int:
    """Return when, in ns, the last member of the gang has ended if all are ordered to stop now."""
    if job.phase == "stopping":
        return max(now, job.due, job.gone_at)
    if job.phase != "running":
        return now
    times, stop_ns = job.times, job.stops_within(job.role.stop_grace_ns)
    dead = {node: known for node, known in job.death_known_at.items() if job.seats.on[node]}
    ends = [now, *dead.values()]
    if len(job.exited) + sum(len(job.seats.on[node]) for node in dead) < job.seats.taken:
        stopped_at = now + stop_ns
        if not dead and job.formed < NEVER:  # members that are still being spawned are stopped once they run
            stopped_at = max(stopped_at, job.started_at + times.up + stop_ns - 2 * times.message)
        ends.append(min(stopped_at, max(now, job.peers_end_at + times.message)))
    return max(ends)


def _end(job: Job, outcome: str, reason: str, now: int) -> None:
    job.phase, job.result.outcome, job.result.reason = "over", outcome, reason
    job.say(now, "ends", outcome, reason)
    close(job, now)


def close(job: Job, now: int) -> None:
    """Write what the result still lacks at the end of the job or run: time in buckets, charges, cordoned nodes."""
    job.books.close(job.halt_at, now)
    job.result.charged = job.policy.charged
    job.result.cordoned = [job.scope.nodes[node] for node in job.seats.cordoned]
