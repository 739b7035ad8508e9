"""Effects of faults in macro mode: nodes die, are cut off and come back, processes end.

The effect is immediate. What the controller learns of it, and when, is scheduled in the job.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from flowdist.faults.grammar import Fault, Rate
from flowdist.faults.rates import fault_of
from flowdist.graph import parse_duration
from flowdist.sim.engine.node import NOTICES_NS
from flowdist.sim.macro.gang import Failed, fail_replica, lose_node
from flowdist.sim.macro.job import Job
from flowdist.sim.macro.orders.departure import drain, preempt
from flowdist.sim.macro.orders.scaling import scale
from flowdist.sim.macro.pace import slow_down
from flowdist.sim.macro.result import FAILED, NEVER


def apply_fault(job: Job, target: str, what: Fault | Rate, now: int) -> None:
    """Apply a fault to everything that its target names.

    A dead or cut-off node, or a replica that does not run, is not hit: nothing happens. Nor does anything if the target
    belongs to another gang. Orders go to the controller.

    Args:
        job: The job.
        target: A node, a label of nodes (`zone=a`), a replica of a gang, a gang, or "all" for the replicas of all
            gangs.
        what: The fault, or the rate that brings it.
        now: The time of the fault, in ns.
    """
    node = job.names.get(target)
    if node is not None:
        if what.kind == "add":
            job.at(now + job.times.message, None, node)
        elif what.kind == "drain":
            _note_fault(job, target, what, now)
            drain(job, node, now)
        elif job.alive[node] and node not in job.cut_off_since:
            _note_fault(job, target, what, now)
            end = _preempt_node if what.kind == "preempt" else _kill_node
            end(job, node, what, now)
    elif "=" in target:
        specs = job.scope.graph.cluster.nodes
        for place, name in enumerate(job.scope.nodes):
            spec = specs[place] if place < len(specs) else specs[0]  # an added node is like the first
            if name in job.names and tuple(target.split("=", 1)) in spec.labels:
                apply_fault(job, name, what, now)
    elif what.kind == "scale":
        _note_fault(job, target, what, now)
        scale(job, int(what.arg), now)
    else:
        for replica in job.replicas_of(target):
            _hit_replica(job, replica, what, now)


def _note_fault(job: Job, target: str, what: Fault | Rate, now: int) -> None:
    """Count a fault that hits its target, and pass it to `tell`."""
    job.result.faults += 1
    if isinstance(what, Rate):
        job.result.by_rate[what.name] += 1
    if job.tell is not None:
        spec = what.spec if isinstance(what, Fault) else fault_of(what, target, now).spec
        job.tell(now, "fault", target, spec)


def _kill_node(job: Job, node: int, what: Fault | Rate, now: int) -> None:
    """Switch a node off or, for a fault `lost`, cut it off: its workers then run until its agent fences them.

    Schedule the moment at which the controller learns of the loss, and the node's return if the fault has a duration. A
    node that is cut off and connects again before its agent fences is not lost.
    """
    times = job.times
    job.late.last_beat[node] = _last_beat(job, node, now)
    back = now + what.duration_ns if what.duration_ns is not None else None
    dies, known, why = now, now + times.proof, "killed"
    if what.kind == "lost":
        job.cut_off_since[node] = now
        job.memory.cut_off(node, back if back is not None else NEVER)
        heard = _last_beat(job, node, now - 2 * times.message)  # the last one whose answer it received
        dies, known, why = heard + times.fence, heard + times.silent, "not heard"
        if back is not None and back < dies:
            job.connected_at[node] = back
            job.at(back, partial(_reconnect, job, node))
            if node == job.offered_by and not job.offers_again(node):
                job.books.take_back(now)
            _lose_messages(job, node, now)
            return
    else:
        job.warm.forget(node)
        job.memory.kill(node)
    if node == job.offered_by:
        job.books.take_back(now)
    job.alive[node] = False
    job.workers_end_at[node], job.dead_since[node] = dies, now
    if back is not None:
        job.connected_at[node] = back
        back += times.message
        known = min(known, back)
    job.at(known, lambda now: lose_node(job, node, why, now))
    if back is not None:
        job.at(back, None, node)
    job.death_known_at[node] = known
    job.companions.end_workers(node, dies)
    if job.members_on(node):
        _kill_members(job, node, dies, known, now)


def _lose_messages(job: Job, node: int, now: int) -> None:
    """Let what is on its way between the controller and a node's agent get lost, because the node is cut off now.

    The node connects again before its agent fences. The agent then reports what has ended, and gets its orders again.
    """
    times, members = job.times, job.members_on(node)
    told = job.told(node, now)
    if job.phase == "opening" and node == job.first_node():
        sent = job.due - times.open
        if now <= sent + times.message:
            job.due = told + times.open
        elif now <= sent + times.open - times.message:
            job.due = told + 2 * times.message
    elif job.phase == "running" and members and now < job.formed < NEVER:
        sent = job.late.started.get(node, job.started_at)
        if now <= sent + times.message:
            job.late.started[node], job.formed = told, max(job.formed, told + times.started)
            restore_ns = job.books.restore_ns if job.books.durable else 0
            job.due = max(job.due, told + times.up + job.startup_on(node, sent) + restore_ns)
        elif now <= sent + times.started - times.message:
            job.late.heard[node] = told
            job.formed = max(job.formed, told)
        if not job.is_alone:
            job.at(job.formed, job.companions.settle)
    elif job.phase == "stopping" and members and job.running_on(node):
        grace_ns, known, sent = job.grace_ns_of(job.incident_kind), told, job.late.stopped.get(node, job.opened)
        ends = job.ends_on(node)
        if now > ends:
            return
        if now <= sent + times.message:
            job.late.stopped[node] = told
            known = job.gone_on(node, told, grace_ns)
        elif ends >= job.connected_at[node]:
            known = ends + times.message
        job.gone_at = max(job.gone_at, known)
        if job.deferred is None:
            job.due = max(job.due, known)
        else:
            job.due = max(job.due, min(told, job.answer_due) if job.is_cleared(node) else told)


def _preempt_node(job: Job, node: int, what: Fault | Rate, now: int) -> None:
    """Give notice that a node will be taken away, and schedule that it is: then it is killed if it has not died before.

    The node comes back, after the duration of the fault from then, whatever has ended it.
    """
    notice_ns, died = parse_duration(what.arg), job.dead_since.get(node)
    job.at(now + job.times.message, lambda at: preempt(job, node, notice_ns, at))

    def take(at: int) -> None:
        if job.alive[node] and job.dead_since.get(node) == died:
            _kill_node(job, node, what, at)
        elif what.duration_ns is not None:
            job.at(at + what.duration_ns + job.times.message, None, node)

    job.at(now + notice_ns, take)


def _kill_members(job: Job, node: int, dies: int, known: int, now: int) -> None:
    """Stop the gang's progress because a node with members has died.

    Args:
        job: The job.
        node: The number of the node.
        dies: When the workers on the node end (ns).
        known: When the controller learns that the node is lost (ns).
        now: When the node died or was cut off (ns).
    """
    if job.phase == "running" and now < job.runs_since(node) - job.times.message:
        job.is_incomplete = True
    if dies > now:
        job.at(dies, partial(stop_short, job))
    else:
        stop_short(job, now)
    if job.phase == "stopping" and now < job.ends_on(node):  # a dead agent does not report that its members stopped
        if job.late.stopped.pop(node, None) is not None and job.deferred is None:  # it would have answered late
            late = [job.ends_on(each) + job.times.message for each in job.late.stopped]
            dead = [at for each, at in job.death_known_at.items() if job.awaited_on(each)]
            job.due = job.gone_at = max([job.stopped_at + job.times.message, job.joint_gone_at, *late, *dead])
        is_cleared = job.deferred is not None and job.is_cleared(node)
        job.due = max(job.due, min(known, job.answer_due) if is_cleared else known)


def _last_beat(job: Job, node: int, now: int) -> int:
    """Return when, in ns, a node that is connected sent its last heartbeat up to `now`."""
    period, connected = job.options.heartbeat_ns, job.connected_at.get(node, 0)
    return connected + (now - connected) // period * period


def _reconnect(job: Job, node: int, now: int) -> None:
    """End the time in which a node is cut off for a moment."""
    job.cut_off_since.pop(node, None)
    job.late.unheard.difference_update(job.seats.on[node])
    job.late.joined[node] = now


def _hit_replica(job: Job, replica: int, what: Fault | Rate, now: int) -> None:
    """End the processes of a member, and schedule its agent's report of the failure; or slow the member down.

    Nothing is hit if the replica does not run. An agent that is cut off cannot report.
    """
    node = job.seats.node_of[replica]
    if node is None or job.phase != "running" or job.formed == NEVER or job.books.finished:
        return
    runs = now >= job.runs_since(node)
    if not runs or (not job.alive[node] and now >= job.workers_end_at.get(node, 0)):
        return
    if what.kind == "slow" and replica in job.exited:
        return
    _note_fault(job, job.name_of(replica), what, now)
    if what.kind == "slow":
        generation, factor = job.result.generations, Fraction(what.arg.rstrip("x"))
        slow_down(job, replica, generation, factor, now)
        if what.duration_ns is not None:
            job.at(now + what.duration_ns, lambda at: slow_down(job, replica, generation, Fraction(1), at))
        return
    job.exited[replica] = None
    stop_short(job, now)
    if node == job.offered_by and job.is_away(node):
        job.books.take_back(job.cut_off_since[node])
    if node in job.cut_off_since:
        job.late.unheard.add(replica)
    if not job.alive[node]:  # not fenced yet, but it is going to
        return
    generation, (kind, signal) = job.result.generations, FAILED[what.kind]
    how = Failed(kind, int(what.arg) if what.kind == "exit" else 0, signal)
    job.at(job.reported_at(node, now), lambda at: fail_replica(job, replica, generation, how, at))


# Peers of a member that has ended.


def stop_short(job: Job, now: int) -> None:
    """End the stepping of the gang, of which a member has ended: the others wait for it until they are stopped.

    Called before the controller knows. What the others do is said by `collective` of the workload. Nothing changes in
    phases in which no member steps.
    """
    collective = job.role.workload.collective if _is_in_collective(job, now) else ""
    if collective == "fail":
        generation, job.peers_end_at = job.result.generations, now + NOTICES_NS
        job.at(job.peers_end_at, lambda at: _fail_peers(job, generation, at))
    if job.phase == "running":
        job.is_deaf = job.is_deaf or collective == "hang"
        job.halt(now)
        job.due = NEVER
    elif job.phase == "stopping":
        job.halt(min(now, job.halt_at or now))


def _is_in_collective(job: Job, now: int) -> bool:
    """Return whether the members of the gang step, so that one that ends leaves the others inside a collective.

    They do not while they start up, wait for a service or save to leave a node, nor when they have done all steps.
    """
    books = job.books
    return (
        books.begun is not None and not job.away and not books.has_left and books.step_at(now) < job.role.workload.steps
    )


def _fail_peers(job: Job, generation: int, now: int) -> None:
    """End the members that are left: their process group has lost a member, so they exit with code 1.

    The failure is reported unless they are being stopped: then they have stopped earlier than SIGTERM would end them.
    Nothing happens if another generation runs by now.
    """
    if generation != job.result.generations or job.phase not in ("running", "stopping"):
        return
    left = _members_left(job)
    job.exited.update(dict.fromkeys(left))
    job.late.unheard.update(replica for replica, node in left.items() if node in job.cut_off_since)
    known = {replica: job.reported_at(node, now) for replica, node in left.items()}
    if job.phase == "running" and left:
        first = min(left, key=lambda replica: known[replica])
        job.at(known[first], lambda at: fail_replica(job, first, generation, Failed("exit", 1), at))
    elif left:
        job.stopped_at = min(job.stopped_at, now)
        dead = (at for node, at in job.death_known_at.items() if job.awaited_on(node))
        job.due = job.gone_at = max([*known.values(), job.joint_gone_at, *dead])


def _members_left(job: Job) -> dict[int, int]:
    """Return the members whose processes run, each with its node, which lives."""
    seats = ((replica, node) for replica, node in enumerate(job.seats.node_of) if node is not None)
    return {
        replica: node
        for replica, node in seats
        if job.alive[node] and replica not in job.exited and replica not in job.newcomers
    }
