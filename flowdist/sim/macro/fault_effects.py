"""Effects of faults in macro mode: nodes die, are cut off and come back, processes end, members become slow.

The effect is immediate. What the controller learns of it, and when, is scheduled in the job.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from flowdist.faults.grammar import Fault, Rate
from flowdist.faults.rates import fault_of
from flowdist.sim.engine.node import NOTICES_NS
from flowdist.sim.macro.gang import Failed, add_node, fail_replica, lose_node
from flowdist.sim.macro.job import Job
from flowdist.sim.macro.result import FAILED, NEVER


def apply_fault(job: Job, target: str, what: Fault | Rate, now: int) -> None:
    """Apply a fault to everything that its target names.

    A dead or cut-off node, or a replica that does not run, is not hit: nothing happens.

    Args:
        job: The job.
        target: A node, a label of nodes (`zone=a`), a replica of the gang, or the gang or "all" for all its replicas.
        what: The fault, or the rate that brings it.
        now: The time of the fault, in ns.
    """
    node = job.names.get(target)
    if node is not None:
        if what.kind == "add":
            job.at(now + job.times.message, partial(add_node, job, node))
        elif job.alive[node]:
            _note_fault(job, target, what, now)
            _kill_node(job, node, what, now)
    elif "=" in target:
        specs = job.scope.graph.cluster.nodes
        for place, name in enumerate(job.scope.nodes):
            spec = specs[place] if place < len(specs) else specs[0]  # an added node is like the first
            if tuple(target.split("=", 1)) in spec.labels:
                apply_fault(job, name, what, now)
    else:
        _, _, index = target.partition("/")
        for replica in [int(index)] if index else range(job.role.max_replicas):
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

    Schedule the moment at which the controller learns of the loss, and the node's return if the fault has a duration.
    """
    times = job.times
    job.last_beat[node] = _last_beat(job, node, now)
    back = now + what.duration_ns if what.duration_ns is not None else NEVER
    dies, known, why = now, now + times.proof, "killed"
    if what.kind == "lost":
        heard = _last_beat(job, node, now - 2 * times.message)  # the last one whose answer it received
        dies, known, why = heard + times.fence, heard + times.silent, "not heard"
    else:
        job.warm.forget(node)
    if job.memory is not None and what.kind == "lost":
        job.memory.cut_off(node, back)
    elif job.memory is not None:
        job.memory.kill(node)
    if node == job.offered_by:
        job.books.take_back(now)
    job.alive[node] = False
    job.workers_end_at[node], job.dead_since[node] = dies, now
    known = min(known, back + times.message)
    job.at(known, partial(lose_node, job, node, why))
    if back < NEVER:
        job.connected_at[node] = back
        job.at(back + times.message, partial(add_node, job, node))
    job.death_known_at[node] = known
    if job.members_on(node):
        _kill_members(job, node, dies, known, now)


def _last_beat(job: Job, node: int, now: int) -> int:
    """Return when, in ns, a node that is connected sent its last heartbeat up to `now`."""
    period, connected = job.options.heartbeat_ns, job.connected_at.get(node, 0)
    return connected + (now - connected) // period * period


def _kill_members(job: Job, node: int, dies: int, known: int, now: int) -> None:
    """Stop the gang's progress because a node with members has died or was cut off now.

    `dies`: when the workers on it end (ns). `known`: when the controller learns that it is lost (ns).
    """
    if dies > now:
        job.at(dies, partial(_stop_short, job))
    else:
        _stop_short(job, now)
    if job.phase == "stopping" and now < job.stopped_at and job.awaited_on(node):  # a dead agent does not report that
        is_cleared = job.deferred is not None and job.is_cleared(node)
        job.due = max(job.due, min(known, job.answer_due) if is_cleared else known)


def _hit_replica(job: Job, replica: int, what: Fault | Rate, now: int) -> None:
    """End the processes of a member, and schedule its agent's report of the failure; or slow the member down.

    Nothing is hit if the replica does not run. An agent that is cut off cannot report.
    """
    node = job.seats.node_of[replica]
    if node is None or job.phase != "running" or job.formed == NEVER or job.books.finished:
        return
    if now < job.formed or (not job.alive[node] and now >= job.workers_end_at[node]):
        return
    if what.kind == "slow" and replica in job.exited:
        return
    _note_fault(job, f"{job.role.name}/{replica}", what, now)
    generation = job.result.generations
    if what.kind == "slow":
        _slow_down(job, replica, generation, Fraction(what.arg.rstrip("x")), now)
        if what.duration_ns is not None:
            job.at(now + what.duration_ns, partial(_slow_down, job, replica, generation, Fraction(1)))
        return
    job.exited[replica] = None
    _stop_short(job, now)
    if not job.alive[node]:  # not fenced yet, but it is going to
        job.unheard.add(replica)
        return
    kind, signal = FAILED[what.kind]
    how = Failed(kind, int(what.arg) if what.kind == "exit" else 0, signal)
    job.at(now + job.times.message, partial(fail_replica, job, replica, generation, how))


def _slow_down(job: Job, replica: int, generation: int, factor: Fraction, now: int) -> None:
    """Let a member take `factor` times as long for a step, and the gang with it; 1 ends that.

    Nothing happens if another generation runs by now.
    """
    if generation != job.result.generations or job.phase not in ("running", "stopping"):
        return
    job.slow.pop(replica, None)
    if factor != 1:
        job.slow[replica] = factor
    if job.books.begun is not None:
        done = job.books.set_pace(job.slowest, now)
        if job.phase == "running":
            job.due = done


# Peers of a member that has ended.


def _stop_short(job: Job, now: int) -> None:
    """End the stepping of the gang, of which a member has ended: the others wait for it until they are stopped.

    Called before the controller knows. What the others do is said by `collective` of the workload: those that step are
    inside a collective, but not while they start up, nor when they have done all steps. Nothing changes in phases in
    which no member steps.
    """
    books, load = job.books, job.role.workload
    collective = load.collective if books.begun is not None and books.step_at(now) < load.steps else ""
    if collective == "fail":
        generation, job.peers_end_at = job.result.generations, now + NOTICES_NS
        job.at(job.peers_end_at, partial(_fail_peers, job, generation))
    if job.phase == "running":
        job.is_deaf = job.is_deaf or collective == "hang"
        job.halt(now)
        job.due = NEVER
    elif job.phase == "stopping":
        job.halt(min(now, job.halt_at or now))


def _fail_peers(job: Job, generation: int, now: int) -> None:
    """End the members that are left: their process group has lost a member, so they exit with code 1.

    The failure is reported unless they are being stopped: then they have stopped earlier than SIGTERM would end them.
    Nothing happens if another generation runs by now.
    """
    if generation != job.result.generations or job.phase not in ("running", "stopping"):
        return
    seats = ((replica, node) for replica, node in enumerate(job.seats.node_of) if node is not None and job.alive[node])
    left = [replica for replica, _ in seats if replica not in job.exited and replica not in job.newcomers]
    job.exited.update(dict.fromkeys(left))
    told = now + job.times.message
    if job.phase == "running" and left:
        job.at(told, partial(fail_replica, job, left[0], generation, Failed("exit", 1)))
    elif left:
        job.stopped_at = min(job.stopped_at, now)
        dead = (at for node, at in job.death_known_at.items() if job.awaited_on(node))
        job.due = job.gone_at = max([told, *dead])
